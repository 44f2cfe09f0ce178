// Java consumers that execute the commands of a test: a line `name command arguments`, one line of answer per command.
// tests/client/parity.py has the same commands for odradek's consumer; a test compares the answers word by word.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Consumers {
    static final Map<String, One> CONSUMERS = new LinkedHashMap<>();
    static final long PATIENCE_MS = 60_000;

    static class One implements ConsumerRebalanceListener {
        final KafkaConsumer<byte[], byte[]> consumer;
        final List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        final List<String> events = new ArrayList<>();
        final List<String> answers = new ArrayList<>();

        One(Properties settings) {
            consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        }

        void poll(long ms) {
            consumer.poll(Duration.ofMillis(ms)).forEach(records::add);
        }

        private void note(String sign, Collection<TopicPartition> partitions) {
            events.add(sign + names(partitions));
        }

        @Override public void onPartitionsAssigned(Collection<TopicPartition> partitions) { note("+", partitions); }
        @Override public void onPartitionsRevoked(Collection<TopicPartition> partitions) { note("-", partitions); }
        @Override public void onPartitionsLost(Collection<TopicPartition> partitions) { note("!", partitions); }
    }

    static String names(Collection<TopicPartition> partitions) {
        return new TreeSet<>(partitions.stream().map(tp -> tp.topic() + ":" + tp.partition()).toList())
            .stream().collect(Collectors.joining(","));
    }

    static TopicPartition partition(String text) {
        int at = text.lastIndexOf(':');
        return new TopicPartition(text.substring(0, at), Integer.parseInt(text.substring(at + 1)));
    }

    static List<TopicPartition> partitions(List<String> texts) {
        return texts.stream().map(Consumers::partition).toList();
    }

    // t:0=5 or t:0=5/metadata
    static Map<TopicPartition, OffsetAndMetadata> offsets(List<String> texts) {
        Map<TopicPartition, OffsetAndMetadata> found = new HashMap<>();
        for (String text : texts) {
            String[] sides = text.split("=");
            String[] value = sides[1].split("/");
            long offset = Long.parseLong(value[0]);
            found.put(partition(sides[0]), new OffsetAndMetadata(offset, value.length > 1 ? value[1] : ""));
        }
        return found;
    }

    static String offsetsText(Map<TopicPartition, OffsetAndMetadata> offsets) {
        Set<String> rows = new TreeSet<>();
        offsets.forEach((tp, commit) -> rows.add(tp.topic() + ":" + tp.partition() + "=" + (commit == null ? "none"
            : commit.offset() + "@" + commit.leaderEpoch().orElse(-1) + "/" + commit.metadata())));
        return String.join(" ", rows);
    }

    interface Probe {
        boolean look();
    }

    static String until(Probe probe, String answer) {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (!probe.look()) {
            if (System.currentTimeMillis() > end) return "timed out";
        }
        return answer;
    }

    static String read(One one, int count) {
        String late = until(() -> {
            if (one.records.size() < count) one.poll(100);
            return one.records.size() >= count;
        }, "");
        if (!late.isEmpty()) return late + " with " + one.records.size();
        Map<String, List<Long>> found = new HashMap<>();
        for (ConsumerRecord<byte[], byte[]> record : one.records)
            found.computeIfAbsent(record.topic() + ":" + record.partition(), key -> new ArrayList<>()).add(record.offset());
        one.records.clear();
        Set<String> rows = new TreeSet<>();
        found.forEach((key, offsets) -> rows.add(key + "=" + offsets.get(0) + "-" + offsets.get(offsets.size() - 1)));
        return String.join(" ", rows);
    }

    static String settle(List<String> wanted) {
        return until(() -> {
            boolean settled = true;
            for (String text : wanted) {
                String[] sides = text.split("=");
                One one = CONSUMERS.get(sides[0]);
                one.poll(20);
                settled &= one.consumer.assignment().size() == Integer.parseInt(sides[1]);
            }
            return settled;
        }, "settled");
    }

    static String run(String name, String command, List<String> words) {
        if (command.equals("new")) {
            Properties settings = new Properties();
            for (String text : words) {
                String[] sides = text.split("=", 2);
                settings.put(sides[0], sides[1]);
            }
            CONSUMERS.put(name, new One(settings));
            return "ok";
        }
        if (command.equals("settle")) return settle(words);
        One one = CONSUMERS.get(name);
        KafkaConsumer<byte[], byte[]> consumer = one.consumer;
        switch (command) {
            case "subscribe": consumer.subscribe(words, one); return "ok";
            case "pattern": consumer.subscribe(Pattern.compile(words.get(0)), one); return "ok";
            case "re2": consumer.subscribe(new SubscriptionPattern(words.get(0)), one); return "ok";
            case "assign": consumer.assign(partitions(words)); return "ok";
            case "unsubscribe": consumer.unsubscribe(); return "ok";
            case "poll": one.poll(Long.parseLong(words.get(0))); return "ok";
            case "read": return read(one, Integer.parseInt(words.get(0)));
            case "fails":
                return until(() -> { one.poll(100); return false; }, "");
            case "assigned": return names(consumer.assignment());
            case "commit":
                if (words.isEmpty()) consumer.commitSync(); else consumer.commitSync(offsets(words));
                return "ok";
            case "async":
                int before = one.answers.size();
                org.apache.kafka.clients.consumer.OffsetCommitCallback onCommit = (offsets, error) ->
                    one.answers.add(error == null ? offsetsText(offsets) : "error " + error.getClass().getSimpleName());
                if (words.isEmpty()) consumer.commitAsync(onCommit); else consumer.commitAsync(offsets(words), onCommit);
                return until(() -> { one.poll(20); return one.answers.size() > before; }, "") + one.answers.get(before);
            case "seek": consumer.seek(partition(words.get(0)), Long.parseLong(words.get(1))); return "ok";
            case "begin": consumer.seekToBeginning(partitions(words)); return "ok";
            case "end": consumer.seekToEnd(partitions(words)); return "ok";
            case "position": return Long.toString(consumer.position(partition(words.get(0))));
            case "committed": return offsetsText(consumer.committed(Set.copyOf(partitions(words))));
            case "pause": consumer.pause(partitions(words)); return "ok";
            case "resume": consumer.resume(partitions(words)); return "ok";
            case "wakeup": consumer.wakeup(); return "ok";
            case "drop": one.records.clear(); return "ok";
            case "events":
                String all = String.join(" ", one.events);
                one.events.clear();
                return all;
            case "close": consumer.close(); CONSUMERS.remove(name); return "ok";
            default: throw new IllegalArgumentException(command);
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            List<String> words = Arrays.asList(line.split(" "));
            String answer;
            try {
                answer = run(words.get(0), words.get(1), words.subList(2, words.size()));
            } catch (Exception error) {
                answer = "error " + error.getClass().getSimpleName();
            }
            System.out.println("> " + answer);
            System.out.flush();
        }
        for (One one : CONSUMERS.values()) one.consumer.close();
    }
}
