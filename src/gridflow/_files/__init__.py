"""Files on local disks, HDFS and object stores. Independent of rows and jobs."""
