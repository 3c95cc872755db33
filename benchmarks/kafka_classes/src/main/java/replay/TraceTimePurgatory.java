package replay;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Field;
import java.util.List;
import java.util.concurrent.AbstractExecutorService;
import java.util.concurrent.DelayQueue;
import java.util.concurrent.Delayed;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.utils.SystemTime;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.purgatory.DelayedOperationPurgatory;
import org.apache.kafka.server.util.timer.SystemTimer;

/**
 * Kafka's purgatory and timer in the trace's time, without the reaper thread. {@link #advance} wakes like the reaper:
 * when the timer's next bucket is due, at the latest after 200 ms. Expirations run in the calling thread.
 */
final class TraceTimePurgatory {
    private static final long IDLE_MS = 200;
    private static final int PURGE_INTERVAL = 1000;
    private static final SystemTime CLOCK = (SystemTime) Time.SYSTEM;
    private static final MethodHandle ADVANCE = advanceClock();

    final DelayedOperationPurgatory<TraceOperation> delegate;
    private final DelayQueue<? extends Delayed> buckets;
    private long lastWakeMs;

    TraceTimePurgatory(String name, long nowMs) {
        SystemTimer timer = new SystemTimer(name, 1, 20, nowMs);
        timer.close();
        set(timer, "taskExecutor", new DirectExecutor());
        buckets = get(timer, "delayQueue");
        delegate = new DelayedOperationPurgatory<>(name, timer, 0, PURGE_INTERVAL, false, true);
        lastWakeMs = nowMs;
    }

    /** Expire what is due by {@code nowMs}, with {@code CLOCK} and the replay set to the time of each wake-up. */
    void advance(Replay replay, long nowMs) {
        for (;;) {
            Delayed first = buckets.peek();
            long wakeMs = lastWakeMs + IDLE_MS;
            if (first != null) {
                wakeMs = Math.min(wakeMs, CLOCK.hiResClockMs() + first.getDelay(TimeUnit.MILLISECONDS));
            }
            if (wakeMs > nowMs) {
                return;
            }
            replay.setTime(wakeMs);
            lastWakeMs = wakeMs;
            try {
                ADVANCE.invokeExact(delegate, 0L);
            } catch (Throwable failed) {
                throw new IllegalStateException(failed);
            }
        }
    }

    void close() {
        try {
            delegate.shutdown();
        } catch (Exception failed) {
            throw new IllegalStateException(failed);
        }
    }

    private static MethodHandle advanceClock() {
        Class<?> of = DelayedOperationPurgatory.class;
        try {
            return MethodHandles.privateLookupIn(of, MethodHandles.lookup())
                .findVirtual(of, "advanceClock", MethodType.methodType(void.class, long.class));
        } catch (ReflectiveOperationException changed) {
            throw new IllegalStateException(changed);
        }
    }

    @SuppressWarnings("unchecked")
    private static <T> T get(Object of, String name) {
        try {
            return (T) field(of, name).get(of);
        } catch (ReflectiveOperationException changed) {
            throw new IllegalStateException(changed);
        }
    }

    private static void set(Object of, String name, Object value) {
        try {
            field(of, name).set(of, value);
        } catch (ReflectiveOperationException changed) {
            throw new IllegalStateException(changed);
        }
    }

    private static Field field(Object of, String name) throws NoSuchFieldException {
        Field field = of.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }

    private static final class DirectExecutor extends AbstractExecutorService implements ExecutorService {
        @Override
        public void execute(Runnable task) {
            task.run();
        }

        @Override
        public void shutdown() {
        }

        @Override
        public List<Runnable> shutdownNow() {
            return List.of();
        }

        @Override
        public boolean isShutdown() {
            return false;
        }

        @Override
        public boolean isTerminated() {
            return true;
        }

        @Override
        public boolean awaitTermination(long timeout, TimeUnit unit) {
            return true;
        }
    }
}
