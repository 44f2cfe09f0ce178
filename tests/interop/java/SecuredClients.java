// Runs a producer and a group consumer for each file of settings, all at the same time:
// SecuredClients SECONDS TOPIC=FILE... prints "TOPIC sent received committed re-authentications error" for each file.

import java.io.FileReader;
import java.io.Reader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class SecuredClients {
    static final Duration POLL = Duration.ofMillis(20);
    static final long PATIENCE_MS = 30_000;

    static int reauthentications(Collection<? extends Metric> metrics) {
        double found = 0;
        for (Metric metric : metrics) {
            if (metric.metricName().name().equals("successful-reauthentication-total")) {
                found = Math.max(found, (Double) metric.metricValue());
            }
        }
        return (int) found;
    }

    static String run(String topic, String file, long seconds) throws Exception {
        Properties settings = new Properties();
        try (Reader reader = new FileReader(file)) {
            settings.load(reader);
        }
        settings.put("group.id", topic);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("max.block.ms", "20000");
        int sent = 0;
        List<String> received = new ArrayList<>();
        try (KafkaProducer<String, String> producer =
                    new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
                KafkaConsumer<String, String> consumer =
                    new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            long end = System.currentTimeMillis() + 1000 * seconds;
            while (System.currentTimeMillis() < end) {
                producer.send(new ProducerRecord<>(topic, 0, null, "" + sent)).get();
                sent++;
                if (sent == 1) {
                    consumer.subscribe(List.of(topic));
                }
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    received.add(record.value());
                }
                consumer.commitAsync();
            }
            end += PATIENCE_MS;
            while (received.size() < sent && System.currentTimeMillis() < end) {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    received.add(record.value());
                }
            }
            consumer.commitSync();
            TopicPartition partition = new TopicPartition(topic, 0);
            OffsetAndMetadata committed = consumer.committed(Set.of(partition)).get(partition);
            int inOrder = 0;
            while (inOrder < received.size() && received.get(inOrder).equals("" + inOrder)) {
                inOrder++;
            }
            int again = reauthentications(producer.metrics().values());
            return topic + " " + sent + " " + inOrder + " " + committed.offset() + " " + again + " -";
        } catch (ExecutionException error) {
            return topic + " " + sent + " 0 0 0 " + error.getCause().getClass().getSimpleName();
        } catch (Exception error) {
            return topic + " " + sent + " 0 0 0 " + error.getClass().getSimpleName();
        }
    }

    public static void main(String[] arguments) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (String argument : List.of(arguments).subList(1, arguments.length)) {
            String[] parts = argument.split("=", 2);
            Thread thread = new Thread(() -> {
                try {
                    System.out.println(run(parts[0], parts[1], Long.parseLong(arguments[0])));
                } catch (Exception error) {
                    error.printStackTrace();
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }
}
