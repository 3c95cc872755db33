package replay;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.server.purgatory.TopicPartitionOperationKey;

/** A parsed trace; parsing is not measured. */
final class Trace {
    /** A produce or fetch: partitions with their parameters, and the keys under which it is watched. */
    static final class Request {
        String name;
        boolean produce;
        long timeoutMs;
        long minBytes;
        int end;
        int[] partitions;
        long[] offsets;
        long[] maxBytes;
        List<TopicPartitionOperationKey> keys;
    }

    /** One line: a {@code request}, or a change of a partition. */
    record Event(char what, long atMs, Request request, int partition, long value, long bytes) {
    }

    final List<Event> events = new ArrayList<>();
    final List<Request> requests = new ArrayList<>();
    final List<String> names = new ArrayList<>();
    final List<TopicPartitionOperationKey> keys = new ArrayList<>();
    final List<Integer> appends = new ArrayList<>();
    private final Map<String, Integer> numbers = new HashMap<>();

    static Trace read(Path path) throws IOException {
        Trace trace = new Trace();
        try (BufferedReader lines = Files.newBufferedReader(path)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                if (!line.isEmpty() && line.charAt(0) != '#') {
                    trace.add(line.split("\t"));
                }
            }
        }
        return trace;
    }

    private void add(String[] fields) {
        char what = fields[0].charAt(0);
        long atMs = Long.parseLong(fields[1]);
        if (what == 'P' || what == 'F') {
            Request request = what == 'P' ? produce(fields) : fetch(fields);
            requests.add(request);
            events.add(new Event(what, atMs, request, -1, 0, 0));
            return;
        }
        int partition = number(fields[2]);
        long value = switch (what) {
            case 'L' -> PartitionStatus.of(fields[3]);
            case 'R' -> 0;
            case 'A', 'H', 'S', 'T' -> Long.parseLong(fields[3]);
            default -> throw new IllegalArgumentException("unknown type of line: " + what);
        };
        if (what == 'A') {
            appends.set(partition, appends.get(partition) + 1);
        }
        events.add(new Event(what, atMs, null, partition, value, what == 'A' ? Long.parseLong(fields[4]) : 0));
    }

    private Request produce(String[] fields) {
        Request request = request(fields[2], fields[3], fields[4]);
        request.produce = true;
        return request;
    }

    private Request fetch(String[] fields) {
        Request request = request(fields[2], fields[3], fields[6]);
        request.minBytes = Long.parseLong(fields[4]);
        request.end = switch (fields[5]) {
            case "leo" -> Log.END;
            case "hw" -> Log.HIGH_WATERMARK;
            case "lso" -> Log.LAST_STABLE;
            default -> throw new IllegalArgumentException("unknown kind of end: " + fields[5]);
        };
        return request;
    }

    private Request request(String name, String timeoutMs, String asked) {
        Request request = new Request();
        request.name = name;
        request.timeoutMs = Long.parseLong(timeoutMs);
        String[] parts = asked.split(",");
        request.partitions = new int[parts.length];
        request.offsets = new long[parts.length];
        request.maxBytes = new long[parts.length];
        request.keys = new ArrayList<>(parts.length);
        for (int at = 0; at < parts.length; at++) {
            String[] part = parts[at].split(":");
            request.partitions[at] = number(part[0]);
            request.offsets[at] = Long.parseLong(part[1]);
            request.maxBytes[at] = part.length > 2 ? Long.parseLong(part[2]) : 0;
            request.keys.add(keys.get(request.partitions[at]));
        }
        return request;
    }

    private int number(String name) {
        return numbers.computeIfAbsent(name, unseen -> {
            names.add(name);
            keys.add(new TopicPartitionOperationKey("t", names.size() - 1));
            appends.add(0);
            return names.size() - 1;
        });
    }
}
