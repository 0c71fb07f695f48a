package io.gridflow.feed;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class HandoverTest {
  @TempDir Path root;

  /** Of a folder that this process has made. */
  private Handover begun(Path folder) throws IOException {
    Files.createDirectory(folder);
    Files.writeString(folder.resolve("pid"), String.valueOf(ProcessHandle.current().pid()));
    Handover handover = new Handover(folder, null);
    assertTrue(handover.begins());
    assertTrue(Files.exists(folder.resolve("begun")));
    return handover;
  }

  @Test
  void whoIsThereIsToldWhyNoFileCouldBeWritten() throws IOException {
    Path folder = root.resolve("rows-1");
    Handover handover = begun(folder);
    Path partial = Files.createFile(folder.resolve("0-0.partial"));
    assertTrue(handover.failed(new IOException("No space left on device")));
    assertEquals("No space left on device", Files.readString(folder.resolve("failed")));
    assertFalse(Files.exists(partial));
  }

  @Test
  void noRowsAreWrittenWhereOthersCouldHavePutTheFolder() throws IOException {
    Path folder = root.resolve("rows-1");
    begun(folder);
    Files.setPosixFilePermissions(folder, PosixFilePermissions.fromString("rwxrwxrwx"));
    assertFalse(Handover.isOwn(folder));
    assertFalse(new Handover(folder, null).begins());
    Path link = Files.createSymbolicLink(root.resolve("rows-2"), folder);
    assertFalse(Handover.isOwn(link));
    Files.setPosixFilePermissions(folder, PosixFilePermissions.fromString("rwx------"));
    assertTrue(Handover.isOwn(folder));
    try (Stream<Path> files = Files.list(folder)) {
      assertEquals(2, files.count()); // pid, begun: no probe is left
    }
  }

  @Test
  void nothingIsDeletedWhereALinkLeads() throws IOException {
    Path folder = root.resolve("rows-1");
    Handover handover = begun(folder);
    Path precious = Files.createDirectory(root.resolve("precious"));
    Files.createFile(precious.resolve("file"));
    Files.move(folder, root.resolve("gone"));
    Files.createSymbolicLink(folder, precious);
    handover.deleteAll();
    assertTrue(Files.exists(precious.resolve("file")));
    Files.delete(folder);
    Files.move(root.resolve("gone"), folder);
    handover.deleteAll();
    assertFalse(Files.exists(folder));
  }

  @Test
  void noRowsAreWrittenIntoAnotherUsersFolder() throws IOException {
    Path folder = Files.createDirectory(root.resolve("rows-1"));
    Files.setPosixFilePermissions(folder, PosixFilePermissions.fromString("rwxr-xr-x"));
    try {
      Files.setAttribute(folder, "unix:uid", 54_321);
    } catch (FileSystemException notRoot) {
      assumeTrue(false);
    }
    assertFalse(Handover.isOwn(folder));
  }

  /** A file that can't be written there is no failure: the worker knows why it has ended. */
  @Test
  void whereTheFolderHasGoneNothingHasFailed() throws IOException {
    Path folder = root.resolve("rows-1");
    Handover handover = begun(folder);
    Files.move(folder, root.resolve("rows-1.over"));
    Path path = folder.resolve("0-0.partial");
    IOException error = assertThrows(IOException.class, () -> Files.createFile(path));
    assertTrue(handover.failed(error));
  }
}
