package org.apache.kafka.controller;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.StringJoiner;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.message.BrokerHeartbeatRequestData;
import org.apache.kafka.common.metadata.PartitionChangeRecord;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.metadata.LeaderRecoveryState;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.metadata.placement.ClusterDescriber;
import org.apache.kafka.metadata.placement.PartitionAssignment;
import org.apache.kafka.metadata.placement.PlacementSpec;
import org.apache.kafka.metadata.placement.StripedReplicaPlacer;
import org.apache.kafka.metadata.placement.UsableBroker;
import org.apache.kafka.server.common.MetadataVersion;

/** Prints what the controller of Apache Kafka decides in cases of chance: one line of JSON each. */
public class ControllerDecisions {
    static final Uuid TOPIC = new Uuid(1, 1);
    static final Uuid DIRECTORY = new Uuid(9, 9);

    public static void main(String[] arguments) {
        Random chance = new Random(41);
        for (int i = 0; i < 1000; i++) election(chance);
        for (int i = 0; i < 250; i++) placement(chance);
        for (int i = 0; i < 100; i++) session(chance);
    }

    // --- elections -------------------------------------------------------------------------------------------------

    static void election(Random chance) {
        int factor = 1 + chance.nextInt(4);
        int[] replicas = some(chance, List.of(1, 2, 3, 4, 5), factor, factor);
        int[] isr = some(chance, list(replicas), 0, factor);
        List<Integer> outside = new ArrayList<>(list(replicas));
        outside.removeAll(list(isr));
        int[] elr = some(chance, outside, 0, outside.size());
        int leader = isr.length > 0 && chance.nextInt(5) > 0 ? isr[chance.nextInt(isr.length)] : -1;
        int[] lastKnown = chance.nextInt(3) > 0 ? new int[0] : new int[] {replicas[chance.nextInt(factor)]};
        boolean recovering = chance.nextInt(5) == 0;
        int[] target = chance.nextBoolean() ? isr : some(chance, list(isr), 0, isr.length);
        int[] unclean = chance.nextInt(3) > 0 ? new int[0] : new int[] {replicas[chance.nextInt(factor)]};
        int[] alive = some(chance, List.of(1, 2, 3, 4, 5), 0, 5);
        int minIsr = 1 + chance.nextInt(factor);
        boolean eligible = chance.nextInt(4) > 0;
        PartitionChangeBuilder.Election kind = PartitionChangeBuilder.Election.values()[chance.nextInt(3)];
        Uuid[] directories = new Uuid[factor];
        Arrays.fill(directories, DIRECTORY);
        PartitionRegistration partition = new PartitionRegistration.Builder().setReplicas(replicas)
            .setDirectories(directories).setIsr(isr).setElr(elr).setLastKnownElr(lastKnown).setLeader(leader)
            .setLeaderRecoveryState(recovering ? LeaderRecoveryState.RECOVERING : LeaderRecoveryState.RECOVERED)
            .setLeaderEpoch(7).setPartitionEpoch(9).build();
        PartitionChangeBuilder builder = new PartitionChangeBuilder(partition, TOPIC, 0, list(alive)::contains,
            MetadataVersion.latestProduction(), minIsr, eligible).setElection(kind).setTargetIsr(list(target))
            .setDefaultDirProvider(broker -> DIRECTORY);
        if (unclean.length > 0) builder.setUncleanShutdownReplicas(list(unclean));
        Optional<PartitionChangeRecord> change = builder.build().map(made -> (PartitionChangeRecord) made.message());
        String made = change.map(record -> "{\"leader\": " + (record.leader() == -2 ? "null" : record.leader())
            + ", \"isr\": " + record.isr() + ", \"elr\": " + sorted(record.eligibleLeaderReplicas())
            + ", \"last_known_elr\": " + record.lastKnownElr() + ", \"recovery_state\": "
            + (record.leaderRecoveryState() == -1 ? "null" : record.leaderRecoveryState()) + "}").orElse("null");
        System.out.println("{\"case\": \"election\", \"replicas\": " + list(replicas) + ", \"isr\": " + list(isr)
            + ", \"elr\": " + list(elr) + ", \"leader\": " + leader + ", \"last_known_elr\": " + list(lastKnown)
            + ", \"recovering\": " + recovering + ", \"target\": " + list(target) + ", \"unclean\": " + list(unclean)
            + ", \"alive\": " + list(alive) + ", \"min_isr\": " + minIsr + ", \"eligible\": " + eligible
            + ", \"election\": \"" + kind + "\", \"change\": " + made + "}");
    }

    // --- placement -------------------------------------------------------------------------------------------------

    /** Gives the same number each time, so that the order of the calls does not matter. */
    static class Same extends Random {
        private final int number;

        Same(int number) {
            this.number = number;
        }

        @Override
        public int nextInt(int bound) {
            return number % bound;
        }
    }

    static void placement(Random chance) {
        int brokers = chance.nextInt(9);
        int racks = 1 + chance.nextInt(4);
        List<UsableBroker> usable = new ArrayList<>();
        StringJoiner described = new StringJoiner(", ", "[", "]");
        for (int broker = 1; broker <= brokers; broker++) {
            int rack = chance.nextInt(racks + 1);
            boolean fenced = chance.nextInt(4) == 0;
            usable.add(new UsableBroker(broker, rack == 0 ? Optional.empty() : Optional.of("r" + rack), fenced));
            described.add("[" + broker + ", " + (rack == 0 ? "null" : "\"r" + rack + "\"") + ", " + fenced + "]");
        }
        int partitions = 1 + chance.nextInt(12);
        short factor = (short) chance.nextInt(5);
        int number = chance.nextInt(12);
        ClusterDescriber cluster = new ClusterDescriber() {
            @Override
            public java.util.Iterator<UsableBroker> usableBrokers() {
                return usable.iterator();
            }

            @Override
            public Uuid defaultDir(int broker) {
                return DIRECTORY;
            }
        };
        String placed;
        try {
            List<List<Integer>> found = new StripedReplicaPlacer(new Same(number))
                .place(new PlacementSpec(0, partitions, factor), cluster).assignments().stream()
                .map(PartitionAssignment::replicas).toList();
            placed = found.toString();
        } catch (ApiException error) {
            placed = "\"" + error.getClass().getSimpleName() + "\"";
        }
        System.out.println("{\"case\": \"placement\", \"brokers\": " + described + ", \"partitions\": " + partitions
            + ", \"factor\": " + factor + ", \"number\": " + number + ", \"placed\": " + placed + "}");
    }

    // --- sessions --------------------------------------------------------------------------------------------------

    static class ManualTime implements Time {
        private long ns = 1_000_000_000L;

        void advance(int ms) {
            ns += ms * 1_000_000L;
        }

        @Override
        public long milliseconds() {
            return ns / 1_000_000;
        }

        @Override
        public long nanoseconds() {
            return ns;
        }

        @Override
        public void sleep(long ms) {
            throw new UnsupportedOperationException();
        }

        @Override
        public void waitObject(Object lock, java.util.function.Supplier<Boolean> condition, long deadlineMs) {
            throw new UnsupportedOperationException();
        }
    }

    static void session(Random chance) {
        ManualTime time = new ManualTime();
        BrokerHeartbeatManager manager = new BrokerHeartbeatManager(new LogContext(), time, 9_000_000_000L);
        StringJoiner steps = new StringJoiner(", ", "[", "]");
        for (int i = 0; i < 40; i++) {
            int broker = 1 + chance.nextInt(3);
            boolean known = manager.brokers().stream().anyMatch(one -> one.id() == broker);
            int kind = chance.nextInt(6);
            if (kind == 0) {
                boolean fenced = chance.nextBoolean();
                manager.register(broker, fenced);
                steps.add("[\"register\", " + broker + ", " + fenced + "]");
            } else if (kind == 1 && chance.nextInt(3) == 0) {
                manager.remove(broker);
                steps.add("[\"remove\", " + broker + "]");
            } else if (kind == 2) {
                int ms = chance.nextInt(6000);
                time.advance(ms);
                boolean valid = manager.hasValidSession(broker, 5);
                steps.add("[\"wait\", " + broker + ", " + ms + ", " + valid + "]");
            } else if (kind == 3) {
                List<Integer> fenced = new ArrayList<>();
                Optional<BrokerIdAndEpoch> over = manager.tracker().maybeRemoveExpired();
                for (; over.isPresent(); over = manager.tracker().maybeRemoveExpired()) {
                    manager.fence(over.get().id());
                    fenced.add(over.get().id());
                }
                steps.add("[\"expire\", " + sorted(fenced) + "]");
            } else if (known) {
                long offset = chance.nextInt(30);
                boolean fence = chance.nextInt(5) == 0;
                boolean shutdown = chance.nextInt(3) == 0;
                boolean leads = chance.nextBoolean();
                long end = chance.nextInt(30);
                manager.tracker().updateContactTime(new BrokerIdAndEpoch(broker, 5));
                var request = new BrokerHeartbeatRequestData().setBrokerId(broker).setBrokerEpoch(5)
                    .setCurrentMetadataOffset(offset).setWantFence(fence).setWantShutDown(shutdown);
                BrokerControlStates states = manager.calculateNextBrokerState(broker, request, 15, () -> leads);
                manager.touch(broker, states.next().fenced(), offset);
                if (states.next().inControlledShutdown()) manager.maybeUpdateControlledShutdownOffset(broker, end);
                steps.add("[\"beat\", " + broker + ", " + offset + ", " + fence + ", " + shutdown + ", " + leads + ", "
                    + end + ", \"" + states.current() + "\", \"" + states.next() + "\", "
                    + manager.controlledShutdownOffset(broker).orElse(-1) + ", "
                    + (manager.lowestActiveOffset() == Long.MAX_VALUE ? "null" : manager.lowestActiveOffset()) + "]");
            }
        }
        System.out.println("{\"case\": \"session\", \"steps\": " + steps + "}");
    }

    // --- lists -----------------------------------------------------------------------------------------------------

    static int[] some(Random chance, List<Integer> from, int least, int most) {
        List<Integer> shuffled = new ArrayList<>(from);
        Collections.shuffle(shuffled, chance);
        return shuffled.subList(0, least + chance.nextInt(most - least + 1)).stream().mapToInt(one -> one).toArray();
    }

    static List<Integer> list(int[] values) {
        return Arrays.stream(values).boxed().toList();
    }

    static List<Integer> sorted(List<Integer> values) {
        return values == null ? null : values.stream().sorted().toList();
    }
}
