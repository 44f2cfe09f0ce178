// One member of a classic group: GroupMember BOOTSTRAP TOPIC GROUP STRATEGY. group_member.py describes its output.

import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class GroupMember {
    static final Map<String, String> ASSIGNORS = Map.of(
        "range", "RangeAssignor",
        "roundrobin", "RoundRobinAssignor",
        "sticky", "StickyAssignor",
        "cooperative-sticky", "CooperativeStickyAssignor");

    static volatile boolean stopped = false;

    static synchronized void report(String text) {
        System.out.println(text);
        System.out.flush();
    }

    public static void main(String[] args) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[2]);
        settings.put("client.id", "java");
        settings.put("partition.assignment.strategy",
            "org.apache.kafka.clients.consumer." + ASSIGNORS.get(args[3]));
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("session.timeout.ms", "6000");
        settings.put("heartbeat.interval.ms", "300");
        settings.put("max.poll.interval.ms", "30000");
        settings.put("fetch.max.wait.ms", "100");
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
        String reported = null;
        try (KafkaConsumer<byte[], byte[]> consumer =
                 new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(args[1]));
            while (!stopped) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
                String now = new TreeSet<>(consumer.assignment().stream().map(tp -> tp.partition()).toList())
                    .stream().map(String::valueOf).collect(Collectors.joining(","));
                if (!now.equals(reported)) {
                    reported = now;
                    report("assigned " + now);
                }
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    report("read " + record.partition() + " " + record.offset());
                }
                if (!records.isEmpty()) {
                    try {
                        consumer.commitSync();
                    } catch (KafkaException refused) {
                        report("refused " + refused);
                    }
                }
            }
        }
        report("left");
    }
}
