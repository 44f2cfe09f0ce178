import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** HDFS with one NameNode and one DataNode. Arguments: the folder of the data, and a file that gets the port. */
public class MiniDfs {
    public static void main(String[] args) throws Exception {
        File data = new File(args[0]);
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(new Configuration(), data).numDataNodes(1).build();
        cluster.waitActive();
        Path partial = Path.of(args[1] + ".new");
        Files.writeString(partial, Integer.toString(cluster.getNameNodePort()));
        Files.move(partial, Path.of(args[1]), StandardCopyOption.ATOMIC_MOVE);
        Thread.currentThread().join();
    }
}
