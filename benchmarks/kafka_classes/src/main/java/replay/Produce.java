package replay;

import java.util.Arrays;

/** DelayedProduce: each partition is settled once, by an error or by the high watermark. */
final class Produce extends TraceOperation {
    private final byte[] statuses;

    Produce(Trace.Request request, Replay replay) {
        super(request, replay);
        statuses = new byte[request.partitions.length];
        Arrays.fill(statuses, PartitionStatus.TIMED_OUT);
    }

    @Override
    public boolean tryComplete() {
        boolean pending = false;
        for (int at = 0; at < statuses.length; at++) {
            if (statuses[at] == PartitionStatus.TIMED_OUT) {
                Log log = replay.logs[request.partitions[at]];
                if (log.status != PartitionStatus.ONLINE) {
                    statuses[at] = log.status;
                } else if (log.offset[Log.HIGH_WATERMARK] >= request.offsets[at]) {
                    statuses[at] = PartitionStatus.ONLINE;
                } else {
                    pending = true;
                }
            }
        }
        return !pending && forceComplete();
    }

    @Override
    String answer() {
        StringBuilder answer = new StringBuilder();
        for (int at = 0; at < statuses.length; at++) {
            answer.append(at == 0 ? "" : ",").append(replay.trace.names.get(request.partitions[at]));
            answer.append(':').append(PartitionStatus.NAMES[statuses[at]]);
        }
        return answer.toString();
    }
}
