//! The client of server.rs, or of that in C or Python: sends messages of several sizes, and looks at
//! the answers. `cargo run --example client -- PATH [end]`

use adma::{Block, Connection};
use std::time::Duration;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or("/tmp/adma-example".into());
    let connection = Connection::connect_for(path, Duration::from_secs(60))?;
    let peer = connection.peer()?;
    println!(
        "connected to process {}, {}",
        peer.pid,
        if peer.proven { "proven" } else { "streamed" }
    );
    for size in [1, 100, 5000, 100_000, 8 << 20] {
        // Large messages between such buffers are copied without the kernel.
        let mut sent = Block::zeroed(size)?;
        sent.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + size) as u8);
        let reading = connection.read(Block::zeroed(size)?); // before the answer is there
        let (result, sent) = connection.write(sent).wait();
        result?;
        let (count, answer) = reading.wait();
        let right = count? == size && sent.iter().eq(answer.iter().rev());
        assert!(right, "{size} bytes: the answer is wrong");
        println!("{size} bytes and back");
    }
    if arguments.next().as_deref() == Some("end") {
        connection.send(&[])?; // an empty message is a message
    }
    Ok(())
}
