package replay;

/** DelayedFetch: waits for enough bytes, unless a partition cannot be waited for. Looks start positions up once. */
final class Fetch extends TraceOperation {
    private final long[] segments;
    private final long[] positions;
    private long bytes;

    Fetch(Trace.Request request, Replay replay) {
        super(request, replay);
        segments = new long[request.partitions.length];
        positions = new long[request.partitions.length];
        for (int at = 0; at < segments.length; at++) {
            Log log = replay.logs[request.partitions[at]];
            long begin = request.offsets[at];
            boolean atEnd = begin == log.offset[request.end];
            segments[at] = atEnd ? log.segment[request.end] : log.segmentOf(begin);
            positions[at] = atEnd ? log.position[request.end] : log.positionOf(begin);
        }
    }

    @Override
    public boolean tryComplete() {
        long accumulated = 0;
        int end = request.end;
        for (int at = 0; at < segments.length; at++) {
            Log log = replay.logs[request.partitions[at]];
            if (log.status != PartitionStatus.ONLINE) {
                return forceComplete();
            }
            long begin = request.offsets[at];
            if (begin > log.offset[end]) {
                return forceComplete();
            }
            if (begin < log.offset[end]) {
                if (segments[at] < log.segment[end]) {
                    return forceComplete();
                }
                if (segments[at] == log.segment[end]) {
                    accumulated += Math.min(log.position[end] - positions[at], request.maxBytes[at]);
                }
            }
        }
        return accumulated >= request.minBytes && forceComplete();
    }

    /** Read the log again for the response, also after an expiration. */
    @Override
    public void onComplete() {
        super.onComplete();
        for (int at = 0; at < segments.length; at++) {
            Log log = replay.logs[request.partitions[at]];
            long begin = request.offsets[at];
            if (log.status == PartitionStatus.ONLINE && begin < log.offset[request.end]) {
                long readable = Math.max(0, log.position[request.end] - log.positionOf(begin));
                bytes += Math.min(request.maxBytes[at], readable);
            }
        }
    }

    @Override
    String answer() {
        return Long.toString(bytes);
    }
}
