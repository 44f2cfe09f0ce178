import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Apache Kafka's command-line tools one after the other: their own main methods, in one Java.
 *
 * A line of the standard input has the name of a tool's class, the tool's input and its arguments, each in base64. The
 * answer is a line with the exit code, the output and the errors.
 */
public final class ToolRunner {
    /** Ends a tool where it asks for the end of the process. */
    private static final class Exited extends Error {
        Exited() {
            super(null, null, false, false);
        }
    }

    // Scala keeps the first System.out that it sees, so there is only one of each.
    private static final ByteArrayOutputStream output = new ByteArrayOutputStream();
    private static final ByteArrayOutputStream errors = new ByteArrayOutputStream();
    private static Integer exitCode;

    public static void main(String[] ignored) throws IOException {
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true);
        System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> {
            if (exitCode == null) exitCode = code; // a tool that catches everything asks again
            throw new Exited();
        });
        Exit.setShutdownHookAdder((name, hook) -> { }); // the process goes on
        for (String line = asked.readLine(); line != null; line = asked.readLine()) {
            List<String> words = new ArrayList<>();
            for (String word : line.split(" ", -1)) {
                words.add(new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8));
            }
            int code = run(words.get(0), words.get(1), words.subList(2, words.size()));
            Base64.Encoder encoder = Base64.getEncoder();
            answers.println(code + " " + encoder.encodeToString(output.toByteArray())
                    + " " + encoder.encodeToString(errors.toByteArray()));
        }
        Runtime.getRuntime().halt(0);
    }

    private static int run(String name, String input, List<String> arguments) {
        output.reset();
        errors.reset();
        exitCode = null;
        System.setIn(new ByteArrayInputStream(input.getBytes(StandardCharsets.UTF_8)));
        try {
            Object given = arguments.toArray(new String[0]);
            Class.forName(name).getMethod("main", String[].class).invoke(null, given);
        } catch (InvocationTargetException failed) {
            if (!(failed.getCause() instanceof Exited)) {
                failed.getCause().printStackTrace();
                return 1;
            }
        } catch (ReflectiveOperationException unknown) {
            unknown.printStackTrace();
            return 1;
        }
        System.out.flush();
        System.err.flush();
        return exitCode == null ? 0 : exitCode;
    }
}
