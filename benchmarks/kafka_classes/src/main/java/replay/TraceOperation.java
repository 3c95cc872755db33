package replay;

import org.apache.kafka.server.purgatory.DelayedOperation;

/** An operation of the trace as a {@link DelayedOperation} of Kafka, which records how it ended. */
abstract class TraceOperation extends DelayedOperation {
    final Trace.Request request;
    final Replay replay;
    boolean expired;
    long endedMs;
    int trigger;

    TraceOperation(Trace.Request request, Replay replay) {
        super(request.timeoutMs);
        this.request = request;
        this.replay = replay;
    }

    /** The response, in the format of a trace's outcomes. */
    abstract String answer();

    @Override
    public void onComplete() {
        endedMs = replay.nowMs;
        trigger = replay.checking;
    }

    @Override
    public void onExpiration() {
        expired = true;
    }
}
