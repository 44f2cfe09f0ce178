// Prints the defaults of Kafka's consumer, producer and broker: "consumer max.poll.records 500".

import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.AbstractKafkaConfig;

public class Defaults {
    static void print(String owner, ConfigDef definitions) {
        for (Map.Entry<String, Object> entry : new TreeMap<>(definitions.defaultValues()).entrySet()) {
            System.out.println(owner + " " + entry.getKey() + " " + entry.getValue());
        }
    }

    public static void main(String[] args) {
        print("consumer", ConsumerConfig.configDef());
        print("producer", ProducerConfig.configDef());
        print("broker", AbstractKafkaConfig.CONFIG_DEF);
    }
}
