import java.io.IOException;
import java.util.Properties;
import kafka.server.KafkaConfig;

/** Reads the settings of a node from the standard input, and prints why Kafka refuses them, or "accepted". */
public final class NodeSettings {
    public static void main(String[] ignored) throws IOException {
        Properties settings = new Properties();
        settings.load(System.in);
        settings.setProperty("log.dirs", "/tmp/none");
        String answer = "accepted";
        try {
            KafkaConfig.fromProps(settings);
        } catch (RuntimeException refused) {
            answer = String.valueOf(refused.getMessage()).replace('\n', ' ');
        }
        System.out.println(answer);
    }
}
