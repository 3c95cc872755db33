package replay;

import java.util.Arrays;

/**
 * The log of one replica, as far as waiting depends on it: offsets, positions of batches, base offsets of segments. As
 * in Kafka, the offset metadata of high watermark and last stable offset are those of the time when each was set.
 */
final class Log {
    static final int END = 0;
    static final int HIGH_WATERMARK = 1;
    static final int LAST_STABLE = 2;

    byte status = PartitionStatus.ONLINE;

    /** By kind of end: its offset, the base offset of its segment, and its position. */
    final long[] offset = new long[3];
    final long[] segment = new long[3];
    final long[] position = new long[3];

    private long[] batchBegins;
    private long[] batchPositions;
    private int batches;
    private long[] rolls = new long[4];
    private int segments;

    Log(int appends) {
        batchBegins = new long[appends];
        batchPositions = new long[appends];
    }

    void append(long end, long bytes) {
        batchBegins[batches] = offset[END];
        batchPositions[batches++] = position[END];
        offset[END] = end;
        segment[END] = segmentOf(end);
        position[END] += bytes;
    }

    /** Advance a watermark; only a truncation moves it back. */
    void move(int end, long to) {
        if (to >= offset[end]) {
            take(end, to);
        }
    }

    void roll() {
        long base = offset[END];
        if (base > (segments == 0 ? 0 : rolls[segments - 1])) {
            if (segments == rolls.length) {
                rolls = Arrays.copyOf(rolls, 2 * segments);
            }
            rolls[segments++] = base;
            segment[END] = base;
        }
    }

    void truncate(long to) {
        if (to >= offset[END]) {
            return;
        }
        position[END] = positionOf(to);
        while (batches > 0 && batchBegins[batches - 1] >= to) {
            batches--;
        }
        while (segments > 0 && rolls[segments - 1] > to) {
            segments--;
        }
        offset[END] = to;
        segment[END] = segmentOf(to);
        for (int end = HIGH_WATERMARK; end <= LAST_STABLE; end++) {
            if (offset[end] > to) {
                take(end, to);
            }
        }
    }

    long segmentOf(long of) {
        int at = segments - 1;
        while (at >= 0 && rolls[at] > of) {
            at--;
        }
        return at < 0 ? 0 : rolls[at];
    }

    /** Position of the batch that holds the offset; at or beyond the log end, the position of the end. */
    long positionOf(long of) {
        if (of >= offset[END]) {
            return position[END];
        }
        int found = Arrays.binarySearch(batchBegins, 0, batches, of);
        return batchPositions[found >= 0 ? found : Math.max(0, -found - 2)];
    }

    private void take(int end, long to) {
        offset[end] = to;
        segment[end] = segmentOf(to);
        position[end] = positionOf(to);
    }
}
