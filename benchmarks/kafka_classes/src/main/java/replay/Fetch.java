package replay;

/** DelayedFetch: enough bytes, or a partition that cannot be waited for. Where it begins is looked up once. */
final class Fetch extends Waiting {
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
            if (log.standing != Standing.ONLINE) {
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

    /** The log is read again, whatever ended the fetch. */
    @Override
    public void onComplete() {
        super.onComplete();
        for (int at = 0; at < segments.length; at++) {
            Log log = replay.logs[request.partitions[at]];
            long begin = request.offsets[at];
            if (log.standing == Standing.ONLINE && begin < log.offset[request.end]) {
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
