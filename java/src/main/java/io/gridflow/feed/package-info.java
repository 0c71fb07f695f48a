/**
 * Writes rows for training processes to Arrow files where Spark has them: Python maps the files,
 * and no row passes through a socket.
 *
 * <p>{@code gridflow/_feed/ingest/jvm_files.py} uses it and takes over the files; it and {@link
 * io.gridflow.feed.Handover} describe the layout of the folder.
 */
package io.gridflow.feed;
