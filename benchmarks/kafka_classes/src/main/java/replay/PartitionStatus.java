package replay;

/** Status of a partition in a response: {@code none}, or an error. */
final class PartitionStatus {
    static final byte ONLINE = 0;
    static final byte OFFLINE = 1;
    static final byte MOVED = 2;
    static final byte UNKNOWN = 3;
    static final byte TIMED_OUT = 4;
    static final String[] NAMES = {"none", "offline", "moved", "unknown", "timed_out"};

    private PartitionStatus() {
    }

    static byte of(String word) {
        return switch (word) {
            case "online" -> ONLINE;
            case "offline" -> OFFLINE;
            case "moved" -> MOVED;
            case "unknown" -> UNKNOWN;
            default -> throw new IllegalArgumentException("unknown partition status: " + word);
        };
    }
}
