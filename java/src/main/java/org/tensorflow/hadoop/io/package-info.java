/** The names of tensorflow-hadoop's formats, so that existing jobs run unchanged. */
package org.tensorflow.hadoop.io;
