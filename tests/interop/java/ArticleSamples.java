// The unchanged Java samples of the articles. Different are only what Kafka 4.3 does not have any more,
// poll(long), the address of the broker, and what the samples leave out: process and handle.
// `ArticleSamples NAME BOOTSTRAP [setting=value…]` runs one. It prints what it processes; a line on stdin wakes the
// consumer up, which ends a loop that has no other end.

import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

public class ArticleSamples {
    static Properties given = new Properties();
    static KafkaConsumer<String, String> consumer;
    static int processed = 0;

    // --- what the samples leave out ---------------------------------------------------------------------------

    // `stop.at`: after this number of records it stops within its work, forever.
    // `slow.at`: this record takes `slow.ms`.
    static void process(ConsumerRecord<String, String> record) {
        processed++;
        System.out.printf("processed %s %d %d %d%n", record.topic(), record.partition(), record.offset(),
            System.currentTimeMillis());
        if (processed == Integer.parseInt(given.getProperty("stop.at", "-1"))) pause(Long.MAX_VALUE);
        if (processed == Integer.parseInt(given.getProperty("slow.at", "-1")))
            pause(Long.parseLong(given.getProperty("slow.ms")));
    }

    static void process(ConsumerRecords<String, String> records) {
        for (ConsumerRecord<String, String> record : records) process(record);
        if (!records.isEmpty()) System.out.println("polled " + records.count());
    }

    static void handle(Exception e) {
        System.out.println("handled " + e.getClass().getSimpleName());
    }

    static void commitAysnc() {
        consumer.commitAsync();
    }

    static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    static void subscribed() {
        Properties props = new Properties();
        props.put("group.id", "test");
        props.put("enable.auto.commit", "false");
        props.put("auto.offset.reset", "earliest");
        props.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        props.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        for (String name : given.stringPropertyNames())
            if (!name.matches("stop.at|slow.at|slow.ms")) props.put(name, given.getProperty(name));
        consumer = new KafkaConsumer<>(props);
        consumer.subscribe(Arrays.asList("foo"));
    }

    // --- the samples ------------------------------------------------------------------------------------------

    // Claim 22.
    static void autoCommit() {
        Properties props = new Properties();
        props.put("bootstrap.servers", given.getProperty("bootstrap.servers"));
        props.put("group.id", "test");
        props.put("enable.auto.commit", "true");
        props.put("auto.commit.interval.ms", "2000");
        props.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        props.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(props);
        consumer.subscribe(Arrays.asList("foo", "bar"));
        while (true) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(1000));
            for (ConsumerRecord<String, String> record : records)
                System.out.printf("offset = %d, key = %s, value = %s%n", record.offset(), record.key(), record.value());
        }
    }

    // Claim 31.
    static void commitSync() {
        subscribed();
        while (true) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(1));
            process(records);
            try {
                consumer.commitSync();
            } catch (CommitFailedException e) {
                handle(e);
            }
        }
    }

    // Claim 36.
    static void combined() {
        subscribed();
        try {
            while (true) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(1));
                process(records);
                commitAysnc();
            }
        } catch (Exception e) {
            handle(e);
        } finally {
            try {
                consumer.commitSync();
            } finally {
                consumer.close();
            }
        }
    }

    // Claim 40.
    private static Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
    static int count = 0;

    static void everyHundred() {
        subscribed();
        while (true) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(1));
            if (!records.isEmpty()) System.out.println("polled " + records.count());
            for (ConsumerRecord<String, String> record : records) {
                process(record);
                offsets.put(new TopicPartition(record.topic(), record.partition()),
                    new OffsetAndMetadata(record.offset() + 1));
                if (count % 100 == 0)
                    consumer.commitAsync(offsets, null);
                count++;
            }
        }
    }

    // Not in the articles: the same, but it commits only the current partition, to show the use of the map.
    static void everyHundredOfOnePartition() {
        subscribed();
        while (true) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(1));
            for (ConsumerRecord<String, String> record : records) {
                process(record);
                TopicPartition partition = new TopicPartition(record.topic(), record.partition());
                if (count % 100 == 0)
                    consumer.commitAsync(
                        Collections.singletonMap(partition, new OffsetAndMetadata(record.offset() + 1)), null);
                count++;
            }
        }
    }

    // Not in the articles: auto commit, one record every 10 ms, all of them processed before the next poll.
    static void automatic() {
        System.out.println("started " + System.currentTimeMillis());
        subscribed();
        while (true) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
            for (ConsumerRecord<String, String> record : records) {
                pause(10);
                process(record);
            }
        }
    }

    // The same, but another thread does the work, and the polling thread does not wait for it.
    static void automaticBesideAThread() {
        subscribed();
        while (true) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
            new Thread(() -> process(records)).start();
        }
    }

    public static void main(String[] arguments) throws Exception {
        given.put("bootstrap.servers", arguments[1]);
        for (int n = 2; n < arguments.length; n++) {
            String[] sides = arguments[n].split("=", 2);
            given.put(sides[0], sides[1]);
        }
        Thread waker = new Thread(() -> {
            try {
                if (System.in.read() >= 0) consumer.wakeup();
            } catch (java.io.IOException e) {
                throw new java.io.UncheckedIOException(e);
            }
        });
        waker.setDaemon(true);
        waker.start();
        switch (arguments[0]) {
            case "autoCommit" -> autoCommit();
            case "commitSync" -> commitSync();
            case "combined" -> combined();
            case "everyHundred" -> everyHundred();
            case "everyHundredOfOnePartition" -> everyHundredOfOnePartition();
            case "automatic" -> automatic();
            case "automaticBesideAThread" -> automaticBesideAThread();
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }
}
