package replay;

import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.kafka.common.utils.SystemTime;
import org.apache.kafka.common.utils.Time;

/** One replay of the whole trace, event by event, in the trace's own time. */
final class Replay {
    static final int NONE = -1;
    private static final SystemTime CLOCK = (SystemTime) Time.SYSTEM;

    final Trace trace;
    final Log[] logs;
    long nowMs;
    /** The partition whose watcher lists are being checked. */
    int checking = NONE;
    private final TraceOperation[] operations;
    private final TraceTimePurgatory produces;
    private final TraceTimePurgatory fetches;

    Replay(Trace trace) {
        this.trace = trace;
        logs = new Log[trace.names.size()];
        for (int partition = 0; partition < logs.length; partition++) {
            logs[partition] = new Log(trace.appends.get(partition));
        }
        operations = new TraceOperation[trace.requests.size()];
        setTime(trace.events.isEmpty() ? 0 : trace.events.get(0).atMs());
        produces = new TraceTimePurgatory("Produce", nowMs);
        fetches = new TraceTimePurgatory("Fetch", nowMs);
    }

    /** Run the replay; return the elapsed nanoseconds. */
    long run() {
        long startNs = System.nanoTime();
        int arrived = 0;
        advanceTo(nowMs);
        for (Trace.Event event : trace.events) {
            if (event.atMs() != nowMs) {
                advanceTo(event.atMs());
            }
            Trace.Request request = event.request();
            if (request == null) {
                change(event);
            } else if (request.produce) {
                Produce produce = new Produce(request, this);
                operations[arrived++] = produce;
                produces.delegate.tryCompleteElseWatch(produce, request.keys);
            } else {
                Fetch fetch = new Fetch(request, this);
                operations[arrived++] = fetch;
                fetches.delegate.tryCompleteElseWatch(fetch, request.keys);
            }
            if (request != null && request.timeoutMs <= 0) {
                // Already due: its bucket has started.
                advanceTo(nowMs);
            }
        }
        while (produces.delegate.numDelayed() > 0 || fetches.delegate.numDelayed() > 0) {
            advanceTo(nowMs + 200);
        }
        long elapsedNs = System.nanoTime() - startNs;
        produces.close();
        fetches.close();
        return elapsedNs;
    }

    void setTime(long atMs) {
        nowMs = atMs;
        CLOCK.set(atMs);
    }

    private void advanceTo(long atMs) {
        long from = nowMs;
        produces.advance(this, atMs);
        setTime(from);
        fetches.advance(this, atMs);
        setTime(atMs);
    }

    private void change(Trace.Event event) {
        int partition = event.partition();
        Log log = logs[partition];
        switch (event.what()) {
            case 'A' -> {
                log.append(event.value(), event.bytes());
                check(fetches, partition);
            }
            case 'H' -> {
                log.move(Log.HIGH_WATERMARK, event.value());
                check(produces, partition);
                check(fetches, partition);
            }
            case 'L' -> {
                log.status = (byte) event.value();
                check(produces, partition);
                check(fetches, partition);
            }
            case 'S' -> log.move(Log.LAST_STABLE, event.value());
            case 'R' -> log.roll();
            default -> log.truncate(event.value());
        }
    }

    private void check(TraceTimePurgatory purgatory, int partition) {
        checking = partition;
        purgatory.delegate.checkAndComplete(trace.keys.get(partition));
        checking = NONE;
    }

    /** Write how every operation ended, in order of arrival. */
    void write(Path path) throws IOException {
        try (PrintWriter out = new PrintWriter(Files.newBufferedWriter(path))) {
            for (TraceOperation operation : operations) {
                Trace.Request request = operation.request;
                out.print(request.name + (request.produce ? "\tP\t" : "\tF\t"));
                out.print((operation.expired ? "expired\t" : "completed\t") + operation.endedMs + '\t');
                out.print(operation.trigger == NONE ? "-" : trace.names.get(operation.trigger));
                out.print('\t' + operation.answer() + '\n');
            }
        }
    }
}
