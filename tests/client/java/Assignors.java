// Apache Kafka's assignors, one assignment per line: `name member… topic…`. A member is id|instance|rack|topics|user data
// in hex|owned|generation ("-": none). A topic is name=racks/racks/…: the racks of each partition, joined by "+".
// The answer is `member=topic:partition,… …`, with the members in order.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

public class Assignors {
    static List<String> parts(String text, String separator) {
        return text.equals("-") || text.isEmpty() ? List.of() : Arrays.asList(text.split(separator));
    }

    static TopicPartition partition(String text) {
        int at = text.lastIndexOf(':');
        return new TopicPartition(text.substring(0, at), Integer.parseInt(text.substring(at + 1)));
    }

    static Optional<String> optional(String text) {
        return text.equals("-") ? Optional.empty() : Optional.of(text);
    }

    static ConsumerPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            default -> new CooperativeStickyAssignor();
        };
    }

    static String assignment(String line) {
        String[] words = line.split(" ");
        Map<String, Subscription> members = new LinkedHashMap<>();
        List<PartitionInfo> partitions = new ArrayList<>();
        Map<String, Node> nodes = new HashMap<>();
        for (String word : words) {
            if (word.indexOf('|') >= 0) {
                String[] side = word.split("\\|");
                ByteBuffer data = side[4].equals("-") ? null : ByteBuffer.wrap(HexFormat.of().parseHex(side[4]));
                List<TopicPartition> owned = parts(side[5], ",").stream().map(Assignors::partition).toList();
                Subscription one = new Subscription(parts(side[3], ","), data, owned, Integer.parseInt(side[6]), optional(side[2]));
                one.setGroupInstanceId(optional(side[1]));
                members.put(side[0], one);
            } else if (word.indexOf('=') >= 0) {
                String topic = word.substring(0, word.indexOf('='));
                int number = 0;
                for (String racks : word.substring(word.indexOf('=') + 1).split("/")) {
                    Node[] replicas = parts(racks, "\\+").stream().map(rack -> nodes.computeIfAbsent(rack,
                        key -> new Node(nodes.size(), "h", 1, key))).toArray(Node[]::new);
                    if (replicas.length == 0)
                        replicas = new Node[] {nodes.computeIfAbsent("", key -> new Node(nodes.size(), "h", 1))};
                    partitions.add(new PartitionInfo(topic, number++, replicas[0], replicas, replicas));
                }
            }
        }
        Cluster cluster = new Cluster("c", nodes.values(), partitions, Set.of(), Set.of());
        Map<String, String> assignment = new TreeMap<>();
        assignor(words[0]).assign(cluster, new GroupSubscription(members)).groupAssignment().forEach((member, one) ->
            assignment.put(member, new TreeSet<>(one.partitions().stream().map(tp -> String.format("%s:%03d", tp.topic(), tp.partition()))
                .toList()).stream().collect(Collectors.joining(","))));
        return assignment.entrySet().stream().map(row -> row.getKey() + "=" + row.getValue()).collect(Collectors.joining(" "));
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; System.out.flush()) {
            try {
                System.out.println("> " + assignment(line));
            } catch (RuntimeException error) {
                System.out.println("> error " + error);
            }
        }
    }
}
