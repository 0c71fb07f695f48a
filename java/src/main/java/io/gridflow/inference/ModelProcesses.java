package io.gridflow.inference;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The models' processes of this executor, one for each model, or for each model and GPU. */
final class ModelProcesses {
  private static final Logger LOG = LoggerFactory.getLogger(ModelProcesses.class);

  private static final long LOOK_MILLIS = 500;
  private static final long IDLE_NANOS = TimeUnit.MINUTES.toNanos(1);
  private static final long STOPPED_NANOS = TimeUnit.SECONDS.toNanos(10);

  /** Processes without work, of models that may be asked again; a query may use several. */
  private static final int MOST_IDLE = 3;

  private static final Map<String, ModelProcess> ALL = new HashMap<>();

  /**
   * Starts all processes: Linux ends them with the thread that did (PR_SET_PDEATHSIG), and this one
   * ends with the executor.
   */
  private static final ScheduledExecutorService KEEPER =
      Executors.newSingleThreadScheduledExecutor(
          body -> {
            Thread thread = new Thread(body, "gridflow-models");
            thread.setDaemon(true);
            return thread;
          });

  static {
    var unused =
        KEEPER.scheduleWithFixedDelay(
            ModelProcesses::look, LOOK_MILLIS, LOOK_MILLIS, TimeUnit.MILLISECONDS);
  }

  private ModelProcesses() {}

  /** The process of a model for a task, started if there is none; it is to be given back. */
  static synchronized ModelProcess take(Question question, TaskContext task) {
    var resource = task.resources().get("gpu");
    String gpu = resource.isEmpty() ? null : resource.get().addresses()[0];
    String key = question.key() + (gpu == null ? "" : "/" + gpu);
    ModelProcess process = ALL.get(key);
    if (process == null || !process.isAlive()) {
      process = new ModelProcess(key, question, gpu);
      ALL.put(key, process);
      KEEPER.execute(process::start);
    }
    process.users++;
    return process;
  }

  static synchronized void giveBack(ModelProcess process) {
    process.users--;
    process.idleSince = System.nanoTime();
  }

  /** The next task of its model gets another process. */
  static synchronized void forget(ModelProcess process) {
    ALL.remove(process.key, process);
  }

  private static void look() {
    try {
      lookAtAll();
    } catch (RuntimeException error) { // or it would be the last look
      LOG.warn("could not look at the models' processes", error);
    }
  }

  private static synchronized void lookAtAll() {
    long now = System.nanoTime();
    SparkEnv spark = SparkEnv.get();
    boolean isOver = spark == null || spark.isStopped();
    List<ModelProcess> idle = new ArrayList<>();
    for (ModelProcess process : List.copyOf(ALL.values())) {
      if (!process.isStopped()) {
        process.stoppedSince = 0;
      } else if (process.stoppedSince == 0) {
        process.stoppedSince = now;
      } else if (now - process.stoppedSince > STOPPED_NANOS) {
        process.stop("was frozen (SIGSTOP)", true);
        continue;
      }
      if (isOver) {
        process.stop("has ended with Spark", true);
      } else if (process.users == 0) {
        idle.add(process);
      }
    }
    idle.sort(Comparator.comparingLong((ModelProcess process) -> process.idleSince).reversed());
    int most = !idle.isEmpty() && isMemoryShort() ? 0 : MOST_IDLE;
    for (int i = 0; i < idle.size(); i++) {
      if (i >= most || now - idle.get(i).idleSince > IDLE_NANOS) {
        forget(idle.get(i));
        idle.get(i).stop("had no work", false);
      }
    }
  }

  /** Whether less than a tenth of the memory is left, of the host or of the container. */
  private static boolean isMemoryShort() {
    long all = 0;
    long left = Long.MAX_VALUE;
    for (String line : lines("/proc/meminfo")) {
      if (line.startsWith("MemTotal:")) {
        all = number(line);
      } else if (line.startsWith("MemAvailable:")) {
        left = number(line);
      }
    }
    if (left < all / 10) {
      return true;
    }
    List<String> most = lines("/sys/fs/cgroup/memory.max");
    List<String> used = lines("/sys/fs/cgroup/memory.current");
    long reclaimable = 0; // what was read of files counts as used
    for (String line : lines("/sys/fs/cgroup/memory.stat")) {
      if (line.startsWith("inactive_file ")) {
        reclaimable = number(line);
      }
    }
    return !most.isEmpty()
        && !used.isEmpty()
        && !most.get(0).equals("max")
        && number(used.get(0)) - reclaimable > number(most.get(0)) / 10 * 9;
  }

  private static List<String> lines(String path) {
    try {
      return Files.readAllLines(Path.of(path));
    } catch (IOException none) {
      return List.of();
    }
  }

  private static long number(String line) {
    return Long.parseLong(line.replaceAll("\\D", ""));
  }
}
