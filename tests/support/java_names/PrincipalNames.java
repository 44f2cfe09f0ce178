import java.io.*;
import java.nio.charset.StandardCharsets;
import java.security.cert.*;
import java.util.*;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/** Prints, for each certificate and each list of rules on standard input, the name of its owner and the user's name. */
public class PrincipalNames {
    private static String packed(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        List<SslPrincipalMapper> mappers = new ArrayList<>();
        for (String rules : lines.readLine().split(" "))
            mappers.add(SslPrincipalMapper.fromRules(
                new String(Base64.getDecoder().decode(rules), StandardCharsets.UTF_8)));
        CertificateFactory factory = CertificateFactory.getInstance("X.509");
        StringBuilder out = new StringBuilder();
        for (String line; (line = lines.readLine()) != null; ) {
            byte[] der = Base64.getDecoder().decode(line);
            X509Certificate certificate = (X509Certificate) factory.generateCertificate(new ByteArrayInputStream(der));
            String name = certificate.getSubjectX500Principal().getName();
            out.append(packed(name));
            for (SslPrincipalMapper mapper : mappers) {
                String user;
                try {
                    user = "=" + mapper.getName(name);
                } catch (IOException error) {
                    user = "!";
                }
                out.append(' ').append(packed(user));
            }
            out.append('\n');
        }
        System.out.print(out);
    }
}
