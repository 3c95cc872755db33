package replay;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Path;

/**
 * Executes commands from standard input, one per line: {@code load TRACE}, {@code run}, {@code write OUTCOMES}. Each
 * answers with one line: the number of operations, the nanoseconds of the replay, {@code written}.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] arguments) throws IOException {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        Trace trace = null;
        Replay last = null;
        for (String command = commands.readLine(); command != null; command = commands.readLine()) {
            if (command.startsWith("load ")) {
                last = null;
                trace = Trace.read(Path.of(command.substring(5)));
                System.out.println(trace.requests.size());
            } else if (command.equals("run")) {
                // Release the previous replay first, so that only one is in memory.
                last = null;
                last = new Replay(trace);
                System.out.println(last.run());
            } else if (command.startsWith("write ")) {
                last.write(Path.of(command.substring(6)));
                System.out.println("written");
            } else {
                throw new IllegalArgumentException("unknown command: " + command);
            }
        }
    }
}
