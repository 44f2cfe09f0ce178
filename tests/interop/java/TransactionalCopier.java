// Copies a topic in transactions: TransactionalCopier BOOTSTRAP SOURCE TARGET GROUP TRANSACTIONAL_ID.
// transactional_copier.py describes its output.

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApplicationRecoverableException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class TransactionalCopier implements AutoCloseable {
    static volatile boolean stopped = false;
    static String reported = null;
    static int number = 0;
    static String[] args;

    final KafkaProducer<byte[], byte[]> producer;
    final KafkaConsumer<byte[], byte[]> consumer;

    static synchronized void report(String text) {
        System.out.println(text.replace('\n', ' '));
        System.out.flush();
    }

    TransactionalCopier() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("transactional.id", args[4]);
        settings.put("transaction.timeout.ms", "10000");
        producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        Properties reading = new Properties();
        reading.put("bootstrap.servers", args[0]);
        reading.put("group.id", args[3]);
        reading.put("isolation.level", "read_committed");
        reading.put("auto.offset.reset", "earliest");
        reading.put("enable.auto.commit", "false");
        reading.put("session.timeout.ms", "6000");
        reading.put("heartbeat.interval.ms", "300");
        reading.put("fetch.max.wait.ms", "100");
        reading.put("max.poll.records", "10");
        consumer = new KafkaConsumer<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        producer.initTransactions();
        consumer.subscribe(List.of(args[1]));
    }

    @Override
    public void close() {
        consumer.close();
        producer.close(Duration.ofSeconds(1));
    }

    void step() {
        ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(200));
        String now = new TreeSet<>(consumer.assignment().stream().map(tp -> tp.partition()).toList())
            .stream().map(String::valueOf).collect(Collectors.joining(","));
        if (!now.equals(reported)) {
            reported = now;
            report("assigned " + now);
        }
        if (!records.isEmpty()) {
            copy(records);
        }
    }

    void copy(ConsumerRecords<byte[], byte[]> records) {
        number++;
        try {
            producer.beginTransaction();
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (ConsumerRecord<byte[], byte[]> record : records) {
                byte[] value = (record.partition() + "/" + record.offset()).getBytes(StandardCharsets.UTF_8);
                producer.send(new ProducerRecord<>(args[2], record.partition(), null, value));
                TopicPartition from = new TopicPartition(args[1], record.partition());
                offsets.put(from, new OffsetAndMetadata(record.offset() + 1));
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            if (number % 4 == 1) {
                producer.flush();
                abort();
            } else {
                producer.commitTransaction();
                report("committed");
            }
        } catch (ApplicationRecoverableException | OutOfOrderSequenceException | InvalidConfigurationException fatal) {
            throw fatal;
        } catch (KafkaException abortable) {
            abort();
        }
    }

    void abort() {
        producer.abortTransaction();
        report("aborted");
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        for (TopicPartition tp : consumer.assignment()) {
            OffsetAndMetadata at = committed.get(tp);
            consumer.seek(tp, at == null ? 0 : at.offset());
        }
    }

    public static void main(String[] given) throws InterruptedException {
        args = given;
        Thread ending = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (IOException closed) {
                // the same as its end
            }
            stopped = true;
        });
        ending.setDaemon(true);
        ending.start();
        TransactionalCopier copier = null;
        while (!stopped) {
            try {
                if (copier == null) {
                    copier = new TransactionalCopier();
                }
                copier.step();
                Thread.sleep(20);
            } catch (KafkaException | IllegalStateException error) {
                report("renewed " + error);
                if (copier != null) {
                    copier.close();
                }
                copier = null;
            }
        }
        if (copier != null) {
            copier.close();
        }
        report("left");
    }
}
