package io.gridflow.feed;

import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFileAttributes;
import java.nio.file.attribute.PosixFilePermission;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.util.TaskCompletionListener;

/**
 * The folder through which a task passes files to its Python worker.
 *
 * <p>The worker makes it, with its process's number in the file {@code pid}; the file {@code begun}
 * says that this task has seen it. When the worker wants no more it gives the folder another name,
 * so that it is gone at once, and deletes it: one that is emptied file by file stays where a file
 * comes meanwhile. A file is written under another name, and gets its own, {@code
 * NUMBER-DATASET.arrow}, when it is whole. The worker takes one away when it is done with it: a
 * task is two files ahead at most.
 */
final class Handover {
  /** The consumer of the files has ended. */
  static final class Over extends Exception {}

  /**
   * The worker makes the folder before it imports anything. While this task waits here it doesn't
   * hear the worker say why it couldn't begin, so it waits for so long only.
   */
  private static final long MOST_WAITING_NANOS = TimeUnit.SECONDS.toNanos(10);

  private static final int AHEAD = 2;
  private static final String PARTIAL = ".partial";
  private static final long LEAST_SLEEP_MILLIS = 1;
  private static final long MOST_SLEEP_MILLIS = 16;

  private final Path folder;
  private final TaskContext task;
  private final Path[] handed = new Path[AHEAD];
  private int number;
  private long worker;

  Handover(Path folder, TaskContext task) {
    this.folder = folder;
    this.task = task;
  }

  static Handover of(Layout layout, TaskContext task) {
    // What Spark tells its Python workers as SPARK_LOCAL_DIRS, of which they take the first.
    String root =
        layout.root().isEmpty()
            ? SparkEnv.get().blockManager().diskBlockManager().localDirs()[0].getPath()
            : layout.root();
    Handover handover =
        new Handover(Path.of(root, layout.name() + "-" + task.taskAttemptId()), task);
    // Of a task that fails, Spark kills the worker, wherever it is with its folder.
    task.addTaskCompletionListener((TaskCompletionListener) ended -> handover.deleteAll());
    return handover;
  }

  /** Waits for a consumer of files; false if there is none. */
  boolean begins() {
    long began = System.nanoTime();
    for (long sleep = LEAST_SLEEP_MILLIS; !Files.exists(folder); sleep = rest(sleep)) {
      if (System.nanoTime() - began > MOST_WAITING_NANOS) {
        return false;
      }
    }
    try {
      if (!isOwn(folder)) {
        return false;
      }
      worker = Long.parseLong(Files.readString(folder.resolve("pid")).strip());
      Files.createFile(folder.resolve("begun"));
      return true;
    } catch (IOException | NumberFormatException gone) {
      return false;
    }
  }

  /**
   * Whether the folder is this user's alone: where the local folder is a shared one, another user
   * who has seen the folders of other tasks could make the next. Whose it is, a file tells that
   * this process creates: network file systems give all files to one user.
   */
  static boolean isOwn(Path folder) throws IOException {
    PosixFileAttributes found = attributes(folder);
    Set<PosixFilePermission> rights = found.permissions();
    if (!found.isDirectory()
        || rights.contains(PosixFilePermission.GROUP_WRITE)
        || rights.contains(PosixFilePermission.OTHERS_WRITE)) {
      return false;
    }
    Path probe = Files.createTempFile(folder, "mine", PARTIAL);
    try {
      return attributes(probe).owner().equals(found.owner());
    } finally {
      Files.delete(probe);
    }
  }

  private static PosixFileAttributes attributes(Path path) throws IOException {
    return Files.readAttributes(path, PosixFileAttributes.class, LinkOption.NOFOLLOW_LINKS);
  }

  /** Where the next file of a dataset is to be written; one of each may be open. */
  Path next(int dataset) throws Over {
    check();
    return folder.resolve(number + "-" + dataset + PARTIAL);
  }

  /** Hands a file over, once there is room; returns whether there was at once. */
  boolean handOver(Path written, int dataset) throws IOException, Over {
    int slot = number % AHEAD;
    Path before = handed[slot];
    boolean isAwaited = true;
    if (before != null) {
      for (long sleep = LEAST_SLEEP_MILLIS; Files.exists(before); sleep = rest(sleep)) {
        isAwaited = false;
        check();
      }
    }
    check();
    handed[slot] = Files.move(written, folder.resolve("%08d-%d.arrow".formatted(number, dataset)));
    number++;
    return isAwaited;
  }

  private void check() throws Over {
    task.killTaskIfInterrupted();
    if (isOver()) {
      throw new Over();
    }
  }

  private boolean isOver() {
    if (!ProcessHandle.of(worker).map(ProcessHandle::isAlive).orElse(false)) {
      delete(folder);
    }
    return !Files.exists(folder);
  }

  /** Deletes what a worker that was killed has left, under whichever of its names. */
  void deleteAll() {
    for (String suffix : new String[] {"", ".new", ".over"}) {
      delete(folder.resolveSibling(folder.getFileName() + suffix));
    }
  }

  private static void delete(Path folder) {
    try {
      // Not what another user's link of this name leads to.
      PosixFileAttributes found = attributes(folder);
      if (!found.isDirectory() || !found.owner().equals(Files.getOwner(Path.of("/proc/self")))) {
        return;
      }
      delete(folder, "*");
      Files.deleteIfExists(folder);
    } catch (IOException gone) {
      // Somebody else does it.
    }
  }

  private static void delete(Path folder, String pattern) throws IOException {
    try (DirectoryStream<Path> files = Files.newDirectoryStream(folder, pattern)) {
      for (Path file : files) {
        Files.deleteIfExists(file);
      }
    }
  }

  /**
   * Leaves word of why no file could be written; false if that can't be said either. Where nobody
   * is there to hear it, that is why.
   */
  boolean failed(IOException error) {
    try {
      if (isOver()) {
        return true;
      }
      delete(folder, "*" + PARTIAL); // room for the word on a disk that is full
      Path word = folder.resolve("failed" + PARTIAL);
      Files.writeString(word, String.valueOf(error.getMessage()));
      Files.move(word, folder.resolve("failed"));
      return true;
    } catch (IOException another) {
      error.addSuppressed(another);
      return isOver();
    }
  }

  private long rest(long sleep) {
    task.killTaskIfInterrupted();
    try {
      Thread.sleep(sleep);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException(
          "interrupted while waiting for earlier files to be taken", interrupted);
    }
    return Math.min(2 * sleep, MOST_SLEEP_MILLIS);
  }
}
