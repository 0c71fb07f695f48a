package io.gridflow.inference;

import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.SparkEnv;
import org.apache.spark.SparkFiles;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.PythonUtils;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The process beside the executor that has a model loaded.
 *
 * <p>It reads requests from its standard input and answers on its standard output, which nobody
 * else has. Rows and predictions lie in memory without a name: it makes that, and this process
 * opens it as {@code /proc/PID/fd/NUMBER}. See gridflow/ml/inference/process.py.
 */
final class ModelProcess {
  /** Batches of a task that are under way at once. */
  static final int SLOTS = 2;

  private static final Logger LOG = LoggerFactory.getLogger(ModelProcess.class);

  private static final int LOAD = 0;
  private static final int OPEN = 1;
  private static final int BATCH = 2;
  private static final int CLOSE = 3;

  private static final int DONE = 0;
  private static final int FAILED = 1;
  private static final int ENDED = 2;

  /** The task's number in what concerns no task. */
  private static final long NOBODY = -1;

  private static final long LOOK_MILLIS = 100;
  private static final long EXIT_SECONDS = 5;
  private static final int SIGNALED = 128;
  private static final int SIGKILL = 9;
  private static final int TAIL_LINES = 20;
  private static final int MOST_ANSWER_BYTES = 1 << 26;

  private static final AtomicLong NUMBERS = new AtomicLong();

  /** What came back. */
  record Answer(int status, long number, long nanos, String text) {}

  final String key;
  private final Question question;
  private final String gpu;
  private final String host = SparkEnv.get().blockManager().blockManagerId().host();
  private final int cores = cores();
  private final Map<Long, Line> lines = new ConcurrentHashMap<>();
  private final Deque<String> tail = new ArrayDeque<>();
  private final CountDownLatch loaded = new CountDownLatch(1);

  /** Why it can't load its model: what Python says; null if it can. */
  private volatile String refusal;

  /** Why it has ended; null while it lives. */
  private volatile String ended;

  private volatile String wasEnded;
  private volatile Process process;
  private volatile long memoryKilobytes;
  private DataOutputStream requests;

  // Of ModelProcesses, by its lock.
  int users;
  long idleSince;
  long stoppedSince;

  ModelProcess(String key, Question question, String gpu) {
    this.key = key;
    this.question = question;
    this.gpu = gpu;
  }

  // What ModelProcesses calls, from its thread -------------------------------------------------

  void start() {
    try {
      process = builder().start();
    } catch (IOException | RuntimeException error) {
      end("could not be started: " + error.getMessage());
      return;
    }
    requests = new DataOutputStream(process.getOutputStream());
    daemon("gridflow-model-errors", this::readErrors);
    daemon("gridflow-model", this::converse);
  }

  private ProcessBuilder builder() {
    ProcessBuilder builder =
        new ProcessBuilder(
            question.python(), "-m", "gridflow.ml.inference.process", question.title());
    Map<String, String> environment = builder.environment();
    environment.putAll(question.environment());
    List<String> paths = new ArrayList<>();
    paths.add(PythonUtils.sparkPythonPath());
    for (String name : question.files()) {
      paths.add(SparkFiles.get(name));
    }
    paths.add(SparkFiles.getRootDirectory());
    paths.add(question.environment().getOrDefault("PYTHONPATH", ""));
    paths.add(System.getenv().getOrDefault("PYTHONPATH", ""));
    environment.put("PYTHONPATH", PythonUtils.mergePythonPaths(Scala.seq(paths)));
    environment.putIfAbsent("OMP_NUM_THREADS", Integer.toString(cores));
    if (gpu != null) {
      environment.put("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
      environment.put("CUDA_VISIBLE_DEVICES", gpu);
    }
    return builder;
  }

  private static int cores() {
    String master = SparkEnv.get().conf().get("spark.master", "");
    int there = Runtime.getRuntime().availableProcessors();
    if (master.startsWith("local[") && Character.isDigit(master.charAt(6))) {
      there = Integer.parseInt(master.substring(6).split("[^0-9]", 2)[0]);
    }
    return SparkEnv.get().conf().getInt("spark.executor.cores", there);
  }

  private static void daemon(String name, Runnable body) {
    Thread thread = new Thread(body, name);
    thread.setDaemon(true);
    thread.start();
  }

  /** Notes its memory; returns whether it is frozen (SIGSTOP). */
  boolean isStopped() {
    Process there = process;
    if (there == null || !there.isAlive()) {
      return false;
    }
    try {
      for (String line : Files.readAllLines(Path.of("/proc/" + there.pid() + "/status"))) {
        if (line.startsWith("State:") && line.matches("State:\\s+[Tt].*")) {
          return true;
        } else if (line.startsWith("VmRSS:")) {
          memoryKilobytes = Long.parseLong(line.replaceAll("\\D", ""));
        }
      }
    } catch (IOException | UncheckedIOException gone) {
      return false;
    }
    return false;
  }

  /** Lets it end; {@code why} is what its tasks are told. */
  void stop(String why, boolean atOnce) {
    wasEnded = why;
    Process there = process;
    if (there == null) {
      return;
    }
    if (atOnce) {
      there.destroyForcibly();
      return;
    }
    try {
      there.getOutputStream().close();
    } catch (IOException gone) {
      there.destroyForcibly();
    }
  }

  boolean isAlive() {
    return ended == null;
  }

  // Its two threads ----------------------------------------------------------------------------

  private void readErrors() {
    try (BufferedReader reader =
        new BufferedReader(
            new InputStreamReader(process.getErrorStream(), StandardCharsets.UTF_8))) {
      String line = reader.readLine();
      while (line != null) {
        System.err.println(line); // the executor's log
        synchronized (tail) {
          tail.add(line);
          if (tail.size() > TAIL_LINES) {
            tail.remove();
          }
        }
        line = reader.readLine();
      }
    } catch (IOException closed) {
      // It has ended.
    }
  }

  private void converse() {
    try (DataInputStream answers = new DataInputStream(process.getInputStream())) {
      byte[][] content = question.content().value();
      long bytes = 0;
      for (byte[] piece : content) {
        bytes += piece.length;
      }
      request(LOAD, NOBODY, 0, bytes, question.description());
      synchronized (this) {
        for (byte[] piece : content) {
          requests.write(piece);
        }
        requests.flush();
      }
      while (true) {
        hear(answers);
      }
    } catch (IOException over) {
      // What remains to be said is how it ended.
    } catch (RuntimeException error) { // the model couldn't be fetched
      wasEnded = "could not get its model: " + error;
      process.destroyForcibly();
    }
    end(verdict());
  }

  private void hear(DataInputStream answers) throws IOException {
    int status = answers.readInt();
    long number = answers.readLong();
    int slot = answers.readInt();
    long nanos = answers.readLong();
    int length = answers.readInt();
    if (length < 0 || length > MOST_ANSWER_BYTES) {
      throw new IOException("a damaged answer");
    }
    String text = new String(answers.readNBytes(length), StandardCharsets.UTF_8);
    if (number != NOBODY) {
      Line line = lines.get(number);
      if (line != null) { // else its task has ended
        line.answers.add(new Answer(status, slot, nanos, text));
      }
    } else if (status == DONE) {
      LOG.info("loaded {}: {}", question.title(), text);
      loaded.countDown();
    } else {
      refusal = text;
      ModelProcesses.forget(this);
      loaded.countDown();
      stop("could not load its model", false);
    }
  }

  /** How the process ended, in words. */
  private String verdict() {
    try {
      if (!process.waitFor(EXIT_SECONDS, TimeUnit.SECONDS)) {
        process.destroyForcibly();
        process.waitFor(EXIT_SECONDS, TimeUnit.SECONDS);
      }
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
    if (wasEnded != null) {
      return wasEnded;
    }
    int code = process.isAlive() ? 0 : process.exitValue();
    String words =
        code > SIGNALED ? "was ended by signal " + (code - SIGNALED) : "exited with code " + code;
    if (memoryKilobytes > 0) {
      words += "; it had " + memoryKilobytes / 1024 + " MiB of memory";
    }
    if (code == SIGNALED + SIGKILL) {
      words +=
          ". The kernel or the cluster manager may have killed it for memory: give executors more"
              + " with spark.executor.memoryOverhead, or choose a smaller batch_size";
    }
    String last;
    synchronized (tail) {
      last = String.join("\n", tail);
    }
    return last.isEmpty() ? words : words + ".\nIts last output:\n" + last;
  }

  private void end(String why) {
    ended =
        "the process of the model "
            + question.title()
            + " on "
            + host
            + (process == null ? "" : " (" + process.pid() + ")")
            + " "
            + why;
    ModelProcesses.forget(this);
    loaded.countDown();
    for (Line line : lines.values()) {
      line.answers.add(new Answer(ENDED, 0, 0, ""));
    }
  }

  private synchronized void request(int kind, long number, int slot, long bytes, byte[] text)
      throws IOException {
    requests.writeInt(kind);
    requests.writeLong(number);
    requests.writeInt(slot);
    requests.writeLong(bytes);
    requests.writeInt(text.length);
    requests.write(text);
    requests.flush();
  }

  // What tasks call ----------------------------------------------------------------------------

  /** Waits until the model is loaded, however long that takes, and asks for memory. */
  Line open(Question asked, TaskContext task) throws IOException {
    try {
      while (!loaded.await(LOOK_MILLIS, TimeUnit.MILLISECONDS)) {
        task.killTaskIfInterrupted();
      }
    } catch (InterruptedException interrupted) {
      throw interrupted(task, interrupted);
    }
    if (refusal != null) {
      throw Failures.ofPython(refusal);
    }
    Line line = new Line();
    lines.put(line.number, line);
    if (ended != null) {
      throw new IOException(ended);
    }
    try {
      line.open(asked.asked(), task);
      return line;
    } catch (IOException | RuntimeException error) {
      line.close();
      throw error;
    }
  }

  private static RuntimeException interrupted(TaskContext task, InterruptedException why) {
    Thread.currentThread().interrupt();
    task.killTaskIfInterrupted();
    return new IllegalStateException("interrupted while waiting for a model's process", why);
  }

  /** A task's own conversation with the process. */
  final class Line {
    private final long number = NUMBERS.incrementAndGet();
    private final BlockingQueue<Answer> answers = new LinkedBlockingQueue<>();
    private final List<FileChannel> memory = new ArrayList<>();
    private boolean isClosed;

    private void open(byte[] asked, TaskContext task) throws IOException {
      tell(OPEN, 0, 0, asked);
      String[] words = await(task).text().split(" ", -1);
      for (int i = 1; i < words.length; i++) {
        memory.add(
            FileChannel.open(
                Path.of("/proc", words[0], "fd", words[i]),
                StandardOpenOption.READ,
                StandardOpenOption.WRITE));
      }
    }

    private void tell(int kind, int slot, long bytes, byte[] text) throws IOException {
      try {
        request(kind, number, slot, bytes, text);
      } catch (IOException gone) {
        throw lost();
      }
    }

    FileChannel input(int slot) throws IOException {
      return memory.get(2 * slot).position(0);
    }

    FileChannel output(int slot) throws IOException {
      return memory.get(2 * slot + 1).position(0);
    }

    void send(int slot, long bytes) throws IOException {
      tell(BATCH, slot, bytes, new byte[0]);
    }

    Answer await(TaskContext task) throws IOException {
      Answer answer;
      try {
        do {
          task.killTaskIfInterrupted();
          answer = answers.poll(LOOK_MILLIS, TimeUnit.MILLISECONDS);
        } while (answer == null);
      } catch (InterruptedException interrupted) {
        throw interrupted(task, interrupted);
      }
      if (answer.status() == FAILED) {
        throw Failures.ofPython(answer.text());
      } else if (answer.status() == ENDED) {
        throw lost();
      }
      return answer;
    }

    /** How the process has ended, which its thread finds out. */
    private IOException lost() {
      for (int i = 0; ended == null && i < 100; i++) {
        try {
          Thread.sleep(LOOK_MILLIS);
        } catch (InterruptedException interrupted) {
          Thread.currentThread().interrupt();
          break;
        }
      }
      return new IOException(
          ended == null ? "the process of the model " + question.title() + " is gone" : ended);
    }

    void close() {
      if (isClosed) {
        return;
      }
      isClosed = true;
      lines.remove(number);
      for (FileChannel each : memory) {
        try {
          each.close();
        } catch (IOException ignored) {
          // It was memory.
        }
      }
      try {
        request(CLOSE, number, 0, 0, new byte[0]);
      } catch (IOException gone) {
        // And so is what it had for this task.
      }
    }
  }
}
