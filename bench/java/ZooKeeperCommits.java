import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;

/**
 * Commits offsets to ZooKeeper with its asynchronous client and prints the result as JSON.
 *
 * Arguments: connect string, root znode, kind, partitions of a commit, sessions, commits in flight of each session,
 * warm-up and measured time in milliseconds. The kinds are "writes", one unconditional write for each partition as
 * consumers up to Kafka 1.1 send them, and "transaction", one transaction with the expected versions. With one commit in
 * flight, the writes of a commit follow each other, each after the reply to the one before.
 */
public final class ZooKeeperCommits {
    private static final AtomicReference<String> failure = new AtomicReference<>();
    private static volatile boolean isMeasured;
    private static volatile boolean isOver;

    public static void main(String[] arguments) throws Exception {
        String root = arguments[1];
        boolean isTransaction = arguments[2].equals("transaction");
        int partitions = Integer.parseInt(arguments[3]);
        int sessions = Integer.parseInt(arguments[4]);
        int window = Integer.parseInt(arguments[5]);
        List<Session> all = new ArrayList<>();
        for (int n = 0; n < sessions; n++) {
            all.add(new Session(arguments[0], root, n, partitions, window, isTransaction));
        }
        System.out.println("ready");
        for (Session session : all) {
            session.begin();
        }
        Thread.sleep(Long.parseLong(arguments[6]));
        long cpuBefore = cpuNanos();
        System.out.println("begin");
        long began = System.nanoTime();
        isMeasured = true;
        Thread.sleep(Long.parseLong(arguments[7]));
        isMeasured = false;
        double seconds = (System.nanoTime() - began) / 1e9;
        double cpu = (cpuNanos() - cpuBefore) / 1e9;
        System.out.println("end");
        isOver = true;
        long commits = 0;
        long sent = 0;
        long[] times = new long[0];
        for (Session session : all) {
            session.idle.await();
            session.verify();
            commits += session.measured;
            sent += session.next;
            int had = times.length;
            times = Arrays.copyOf(times, had + session.measured);
            System.arraycopy(session.times, 0, times, had, session.measured);
        }
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        Arrays.sort(times);
        System.out.printf(
            "{\"sent\": %d, \"commits\": %d, \"seconds\": %f, \"cpu_s\": %f, \"p50_ms\": %f, \"p99_ms\": %f}%n",
            sent, commits, seconds, cpu, at(times, 0.5), at(times, 0.99));
        for (Session session : all) {
            session.client.close();
        }
    }

    private static double at(long[] sorted, double share) {
        return sorted.length == 0 ? 0 : sorted[Math.min(sorted.length - 1, (int) (sorted.length * share))] / 1e6;
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime();
    }

    /** One session, which commits for a group of its own. Everything after {@code begin} runs in its event thread. */
    private static final class Session {
        final ZooKeeper client;
        final CountDownLatch idle;
        long[] times = new long[1 << 16];
        int measured;
        private final String[] paths;
        private final boolean isTransaction;
        private final boolean isSequence;
        private final int window;
        private long next;

        Session(String connect, String root, int number, int partitions, int window, boolean isTransaction)
                throws Exception {
            CountDownLatch connected = new CountDownLatch(1);
            client = new ZooKeeper(connect, 30_000, event -> {
                if (event.getState() == Watcher.Event.KeeperState.SyncConnected) {
                    connected.countDown();
                }
            });
            connected.await();
            this.window = window;
            this.isTransaction = isTransaction;
            isSequence = window == 1;
            idle = new CountDownLatch(window);
            paths = new String[partitions];
            String path = "";
            for (String part : (root + "/group-" + number).substring(1).split("/")) {
                path += "/" + part;
                try {
                    client.create(path, new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
                } catch (KeeperException.NodeExistsException ignored) {
                    // Another session has the same root.
                }
            }
            for (int n = 0; n < partitions; n++) {
                paths[n] = path + "/" + n;
                client.create(paths[n], digits(0), ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
            }
        }

        void begin() {
            for (int n = 0; n < window; n++) {
                commit();
            }
        }

        private synchronized void commit() {
            long began = System.nanoTime();
            long offset = ++next;
            if (isTransaction) {
                List<Op> operations = new ArrayList<>();
                for (String path : paths) {
                    operations.add(Op.setData(path, digits(offset), (int) (offset - 1)));
                }
                client.multi(operations, (code, path, context, results) -> done(code, began), null);
            } else if (isSequence) {
                write(0, offset, began);
            } else {
                int[] open = {paths.length};
                for (String path : paths) {
                    client.setData(path, digits(offset), -1, (code, p, context, stat) -> {
                        check(code);
                        if (--open[0] == 0) {
                            done(code, began);
                        }
                    }, null);
                }
            }
        }

        private void write(int index, long offset, long began) {
            client.setData(paths[index], digits(offset), -1, (code, path, context, stat) -> {
                check(code);
                if (index + 1 < paths.length) {
                    write(index + 1, offset, began);
                } else {
                    done(code, began);
                }
            }, null);
        }

        private void done(int code, long began) {
            check(code);
            if (isMeasured) {
                if (measured == times.length) {
                    times = Arrays.copyOf(times, 2 * measured);
                }
                times[measured++] = System.nanoTime() - began;
            }
            if (isOver || failure.get() != null) {
                idle.countDown();
            } else {
                commit();
            }
        }

        void verify() throws Exception {
            for (String path : paths) {
                String found = new String(client.getData(path, false, null), StandardCharsets.US_ASCII);
                if (!found.equals(Long.toString(next))) {
                    failure.compareAndSet(null, path + " has " + found + ", and " + next + " was committed");
                }
            }
        }

        private static void check(int code) {
            if (code != 0) {
                failure.compareAndSet(null, KeeperException.Code.get(code).toString());
            }
        }

        private static byte[] digits(long offset) {
            return Long.toString(offset).getBytes(StandardCharsets.US_ASCII);
        }
    }
}
