package replay;

import org.apache.kafka.server.purgatory.DelayedOperation;

/** An operation of the trace, as Kafka's class; it notes how it ended. */
abstract class Waiting extends DelayedOperation {
    final Trace.Request request;
    final Replay replay;
    boolean expired;
    long endedMs;
    int trigger;

    Waiting(Trace.Request request, Replay replay) {
        super(request.timeoutMs);
        this.request = request;
        this.replay = replay;
    }

    /** What the answer says, in the words of a trace's outcomes. */
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
