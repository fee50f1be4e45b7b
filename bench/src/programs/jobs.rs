//! The jobs, in one table. Their scripts are in bench/programs.

/// Requirement of a job that may be missing.
pub enum Need {
    /// A Python module by the name it is imported by.
    Module(&'static str),
    /// A command, or a file (`*` is any name), and its Debian package.
    Program(&'static str, &'static str),
}
use Need::{Module, Program};

pub struct Job {
    pub name: &'static str,
    /// Description: what is copied, and how often (`{}`).
    what: &'static str,
    /// The script and the job's name in it.
    pub script: (&'static str, &'static str),
    count: usize,
    pub under_test: UnderTest,
    pub needs: &'static [Need],
    /// Whether it can copy with threads of its own, which is an arm of it then.
    pub has_threads: bool,
}

/// Processes that get the library.
#[derive(Clone, Copy, PartialEq)]
pub enum UnderTest {
    /// The job and whatever it starts.
    Job,
    /// Only the programs that the job starts; it is their client.
    Servers,
}
use UnderTest::{Job as Itself, Servers};

const NUMPY: &[Need] = &[Module("numpy")];
const PANDAS: &[Need] = &[Module("numpy"), Module("pandas")];
const ARROW: &[Need] = &[Module("numpy"), Module("pyarrow")];
const RAY: &[Need] = &[Module("numpy"), Module("ray")];
const ZMQ: &[Need] = &[Module("zmq")];
const TORCH: &[Need] = &[Module("numpy"), Module("torch")];
const HDF5: &[Need] = &[Module("numpy"), Module("h5py")];
const REDIS: &[Need] = &[Program("redis-server", "redis-server")];
const POSTGRES: &[Need] = &[Program("/usr/lib/postgresql/*/bin/postgres", "postgresql")];
const MAGICK: &[Need] = &[Program("/usr/bin/convert", "imagemagick")];
const GSTREAMER: &[Need] = &[
    Program("gst-launch-1.0", "gstreamer1.0-tools"),
    Program("/usr/lib/*/gstreamer-1.0/libgstshm.so", "gstreamer1.0-plugins-bad"),
];
const NODE: &[Need] = &[Program("node", "nodejs")];

/// Jobs of bench/programs/reads_jobs.py, which the benchmark `reads` runs.
pub const READS: &[&str] =
    &["read", "readinto", "cold", "np_fromfile", "np_load", "parquet", "h5py", "torch_load"];

#[rustfmt::skip]
pub const JOBS: &[Job] = &[
    job("numpy-copyto", "np.copyto, {} x 256 MiB", ("numpy_jobs.py", "copyto"), 12, Itself, NUMPY),
    job("numpy-copy", "a.copy(), {} x 256 MiB", ("numpy_jobs.py", "copy"), 8, Itself, NUMPY),
    job("numpy-mapped", "np.array of a mapped file, {} x 512 MiB", ("numpy_jobs.py", "mapped"), 3, Itself, NUMPY),
    job("numpy-roll", "np.roll, {} x 256 MiB", ("numpy_jobs.py", "roll"), 6, Itself, NUMPY),
    job("numpy-concatenate", "np.concatenate of 8 x 64 MiB, {} times", ("numpy_jobs.py", "concatenate"), 5, Itself, NUMPY),
    job("numpy-stack", "np.stack of 8 x 32 MiB, {} times", ("numpy_jobs.py", "stack"), 8, Itself, NUMPY),
    job("numpy-slices", "ring[i] = frame, {} x 16 MiB", ("numpy_jobs.py", "slices"), 256, Itself, NUMPY),
    job("numpy-pickle", "pickled into a pipe and out, {} x 64 MiB", ("numpy_jobs.py", "pickled"), 8, Itself, NUMPY),
    job("numpy-shared", "shared_memory between two processes, {} x 64 MiB", ("numpy_jobs.py", "shared"), 24, Itself, NUMPY),
    job("pandas-concat", "pd.concat of 6 x 64 MB, {} times", ("numpy_jobs.py", "frames_concat"), 8, Itself, PANDAS),
    job("pandas-filter", "frame[mask] of 256 MB, {} times", ("numpy_jobs.py", "frames_filter"), 12, Itself, PANDAS),
    job("arrow-ipc", "pyarrow IPC stream in memory, {} x 256 MiB", ("numpy_jobs.py", "arrow_ipc"), 8, Itself, ARROW),
    Job { has_threads: true, ..job("arrow-write", "pa.FixedSizeBufferWriter, {} x 256 MiB", ("numpy_jobs.py", "arrow_write"), 12, Itself, ARROW) },
    job("ray-put", "ray.put, by six threads of Ray's own, {} x 256 MiB", ("ray_jobs.py", "put"), 8, Itself, RAY),
    job("zmq-messages", "pyzmq between two processes, {} x 16 MiB", ("zmq_jobs.py", "messages"), 200, Itself, ZMQ),
    job("hdf5-core", "h5py core driver, {} x 64 MiB written and read", ("numpy_jobs.py", "hdf5_core"), 24, Itself, HDF5),
    job("python-read", "file.read(), {} x 256 MiB in the page cache", ("reads_jobs.py", "read"), 12, Itself, &[]),
    job("numpy-load", "np.load, {} x 256 MiB in the page cache", ("reads_jobs.py", "np_load"), 12, Itself, NUMPY),
    job("arrow-parquet", "pq.read_table, {} x 256 MiB in the page cache", ("reads_jobs.py", "parquet"), 8, Itself, ARROW),
    job("hdf5-file", "h5py, {} x 256 MiB in the page cache", ("reads_jobs.py", "h5py"), 12, Itself, HDF5),
    job("torch-load", "torch.load, {} x 256 MiB in the page cache", ("reads_jobs.py", "torch_load"), 12, Itself, TORCH),
    job("sqlite-blobs", "Python's sqlite3, {} blobs of 16 MiB written and read", ("sqlite_jobs.py", "blobs"), 60, Itself, &[]),
    job("redis-copy", "COPY, {} x 4 MiB", ("redis_jobs.py", "copy"), 3000, Servers, REDIS),
    job("redis-1M", "SET and GET, {} x 1 MiB", ("redis_jobs.py", "1M"), 2000, Servers, REDIS),
    job("redis-4M", "SET and GET, {} x 4 MiB", ("redis_jobs.py", "4M"), 600, Servers, REDIS),
    job("postgres-string_agg", "string_agg of 8 x 8 MiB, {} times", ("postgres_jobs.py", "string_agg"), 12, Servers, POSTGRES),
    job("imagemagick-clones", "four copies of 12 megapixels drawn on", ("imagemagick_jobs.py", "clones"), 1, Servers, MAGICK),
    job("gstreamer-shm", "shmsink to shmsrc, {} x 16 MiB", ("gstreamer_jobs.py", "shm"), 200, Servers, GSTREAMER),
    job("node-buffer", "copy, concat and from of 64 MiB, {} times", ("node_jobs.js", "buffer"), 12, Itself, NODE),
    job("rust-clone", "Vec::clone, {} x 64 MiB", ("", "vec-clone"), 24, Itself, &[]),
];

/// Scripts, embedded in the binary, which suffices on another machine.
pub const SCRIPTS: &[(&str, &str)] = &[
    ("work.py", include_str!("../../programs/work.py")),
    ("numpy_jobs.py", include_str!("../../programs/numpy_jobs.py")),
    ("ipc_python.py", include_str!("../../ipc_python.py")),
    ("zmq_jobs.py", include_str!("../../programs/zmq_jobs.py")),
    ("ray_jobs.py", include_str!("../../programs/ray_jobs.py")),
    ("reads_jobs.py", include_str!("../../programs/reads_jobs.py")),
    ("sqlite_jobs.py", include_str!("../../programs/sqlite_jobs.py")),
    ("redis_jobs.py", include_str!("../../programs/redis_jobs.py")),
    ("postgres_jobs.py", include_str!("../../programs/postgres_jobs.py")),
    ("imagemagick_jobs.py", include_str!("../../programs/imagemagick_jobs.py")),
    ("gstreamer_jobs.py", include_str!("../../programs/gstreamer_jobs.py")),
    ("node_jobs.js", include_str!("../../programs/node_jobs.js")),
];

const fn job(
    name: &'static str,
    what: &'static str,
    script: (&'static str, &'static str),
    count: usize,
    under_test: UnderTest,
    needs: &'static [Need],
) -> Job {
    Job { name, what, script, count, under_test, needs, has_threads: false }
}

impl Job {
    /// Returns how often the job repeats its work.
    pub fn count(&self, quick: bool) -> usize {
        if quick { self.count.div_ceil(2) } else { self.count }
    }

    pub fn what(&self, quick: bool) -> String {
        self.what.replace("{}", &self.count(quick).to_string())
    }
}

/// Returns the jobs that a list names: "redis" is all of its jobs, "redis-copy" is one.
pub fn chosen(names: Option<&[String]>) -> Vec<&'static Job> {
    let named = |job: &&Job| names.is_none_or(|names| names.iter().any(|name| is(name, job)));
    JOBS.iter().filter(named).collect()
}

/// Returns whether a name of the command line means any job.
pub fn known(name: &str) -> bool {
    JOBS.iter().any(|job| is(name, job))
}

fn is(name: &str, job: &Job) -> bool {
    job.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_one_job_or_all_of_a_program() {
        let names = |list: &[&str]| -> Vec<&str> {
            let list: Vec<String> = list.iter().map(|name| name.to_string()).collect();
            chosen(Some(&list)).iter().map(|job| job.name).collect()
        };
        assert_eq!(names(&["redis"]), ["redis-copy", "redis-1M", "redis-4M"]);
        assert_eq!(names(&["numpy-copy"]), ["numpy-copy"]);
        assert_eq!(names(&["rust", "redis-copy"]), ["redis-copy", "rust-clone"]);
        assert_eq!(chosen(None).len(), JOBS.len());
        assert!(!known("red") && !known("redis-") && !known("") && known("numpy"));
    }

    #[test]
    fn every_job_has_a_name_of_its_own_and_a_script_that_is_carried() {
        for (number, job) in JOBS.iter().enumerate() {
            // A name is a field of figures.
            assert!(!job.name.contains(['.', ' ']), "{}", job.name);
            assert!(JOBS[..number].iter().all(|other| other.name != job.name), "{}", job.name);
            if job.script.0.is_empty() {
                continue;
            }
            let script = SCRIPTS.iter().find(|(name, _)| *name == job.script.0);
            let (_, text) = script.unwrap_or_else(|| panic!("{} is not carried", job.script.0));
            assert!(text.contains(job.script.1), "{} has no {}", job.script.0, job.script.1);
        }
    }
}
