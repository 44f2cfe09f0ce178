import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;

/** Reads pairs of schemas, two lines each (reader, writer). Writes four lines for a pair: the canonical texts or the
 * errors, and the incompatibilities as a JSON list of [type, path, message]. */
public class AvroVerdicts {
  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    java.io.PrintStream out = new java.io.PrintStream(System.out, false, StandardCharsets.UTF_8);
    String first;
    while ((first = in.readLine()) != null) {
      String second = in.readLine();
      Schema reader = parse(first, out);
      Schema writer = parse(second, out);
      out.println(reader == null || writer == null ? "null" : verdict(reader, writer));
    }
    out.flush();
  }

  private static Schema parse(String text, java.io.PrintStream out) {
    try {
      Schema schema = new Schema.Parser().parse(text);
      out.println(schema.toString());
      return schema;
    } catch (Exception error) {
      out.println("error " + String.valueOf(error.getMessage()).replace('\n', ' '));
      return null;
    }
  }

  private static String verdict(Schema reader, Schema writer) {
    List<String> rows = new ArrayList<>();
    try {
      for (SchemaCompatibility.Incompatibility one :
          SchemaCompatibility.checkReaderWriterCompatibility(reader, writer).getResult().getIncompatibilities()) {
        rows.add("[\"" + one.getType() + "\", " + quoted(one.getLocation()) + ", " + quoted(one.getMessage()) + "]");
      }
    } catch (Exception error) {
      return "\"error\"";
    }
    return "[" + String.join(", ", rows) + "]";
  }

  private static String quoted(String text) {
    return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
  }
}
