/**
 * Rows on their way to training processes, written to Arrow files where Spark has them: Python maps
 * the files, and no row passes a socket.
 *
 * <p>{@code gridflow/_feed/ingest/jvm_files.py} asks for it and takes the files over; what a folder
 * of them looks like is said there and in {@link io.gridflow.feed.Handover}.
 */
package io.gridflow.feed;
