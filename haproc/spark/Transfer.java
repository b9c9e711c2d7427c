package haproc.spark;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.api.java.function.Function;
import org.apache.spark.util.SerializableConfiguration;

/**
 * Copies a file of a table from one folder to another, on any machine where Spark runs it.
 *
 * <p>Files of tables never change. So a file that is there with the same size is not copied again.
 */
final class Transfer implements Function<String, Long> {
    private static final long serialVersionUID = 1;

    private final String from;
    private final String to;
    private final SerializableConfiguration conf;

    Transfer(String from, String to, SerializableConfiguration conf) {
        this.from = from;
        this.to = to;
        this.conf = conf;
    }

    /** Returns the number of copied bytes; -1: the file was there. */
    @Override
    public Long call(String name) throws IOException {
        Configuration hadoop = conf.value();
        Path source = Copies.path(new Path(from), name);
        Path target = Copies.path(new Path(to), name);
        FileSystem sources = source.getFileSystem(hadoop);
        FileSystem targets = target.getFileSystem(hadoop);
        long size = sources.getFileStatus(source).getLen();
        if (size(targets, target) == size) {
            return -1L;
        }
        try (InputStream input = sources.open(source);
                OutputStream output = targets.create(target, true)) {
            input.transferTo(output);
        }
        if (size(targets, target) != size) {
            throw new IOException(target + " has not the size of " + source);
        }
        return size;
    }

    private static long size(FileSystem files, Path path) throws IOException {
        try {
            return files.getFileStatus(path).getLen();
        } catch (FileNotFoundException error) {
            return -1;
        }
    }
}
