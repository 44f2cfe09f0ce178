import java.io.File;
import org.apache.kafka.raft.ElectionState;
import org.apache.kafka.raft.FileQuorumStateStore;
import org.apache.kafka.server.common.KRaftVersion;

/** Reads a file quorum-state with Kafka's class, prints the election, and writes it for a level of kraft.version. */
public final class QuorumStateFile {
    public static void main(String[] arguments) {
        ElectionState election = new FileQuorumStateStore(new File(arguments[0])).readElectionState().orElseThrow();
        KRaftVersion level = KRaftVersion.fromFeatureLevel(Short.parseShort(arguments[2]));
        new FileQuorumStateStore(new File(arguments[1])).writeElectionState(election, level);
        System.out.println(election);
    }
}
