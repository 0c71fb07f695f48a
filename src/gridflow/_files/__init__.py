"""Files wherever they lie: local disks, HDFS, object stores. Knows nothing of rows or of jobs."""
