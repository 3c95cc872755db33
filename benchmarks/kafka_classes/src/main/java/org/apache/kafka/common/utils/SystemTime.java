package org.apache.kafka.common.utils;

import java.util.function.Supplier;

/**
 * The trace's clock for all of Kafka's classes. It shadows Kafka's own class of this name on the class path, and is the
 * only class that does: wheels, queues and purgatories are Kafka's own and read the time from it.
 * Get it as {@link Time#SYSTEM}, as they do: the interface must be loaded before this class.
 */
public final class SystemTime implements Time {
    private static final SystemTime CLOCK = new SystemTime();

    private long nowMs;

    private SystemTime() {
    }

    public static SystemTime getSystemTime() {
        return CLOCK;
    }

    public void set(long nowMs) {
        this.nowMs = nowMs;
    }

    @Override
    public long milliseconds() {
        return nowMs;
    }

    @Override
    public long hiResClockMs() {
        return nowMs;
    }

    @Override
    public long nanoseconds() {
        return nowMs * 1_000_000;
    }

    @Override
    public void sleep(long ms) {
        nowMs += ms;
    }

    @Override
    public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
        throw new UnsupportedOperationException("no thread waits while a trace is replayed");
    }
}
