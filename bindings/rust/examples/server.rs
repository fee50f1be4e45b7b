//! A server with a thread for each client: answers each message with its bytes in reverse, and ends
//! when a client sends an empty one. `cargo run --example server -- PATH`

use adma::{Block, Connection, Listener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

static OVER: AtomicBool = AtomicBool::new(false);

fn serve(client: Connection) -> std::io::Result<()> {
    loop {
        let len = client.wait_next()?;
        let (result, mut block) = client.read(Block::from(vec![0; len])).wait();
        if result? == 0 {
            OVER.store(true, Ordering::Relaxed);
            return Ok(());
        }
        block.reverse();
        client.write(block).wait().0?;
    }
}

fn main() -> std::io::Result<()> {
    let path = std::env::args().nth(1).unwrap_or("/tmp/adma-example".into());
    let listener = Listener::bind(path)?;
    while !OVER.load(Ordering::Relaxed) {
        match listener.accept_for(Duration::from_millis(50)) {
            // Err: the client has closed
            Ok(client) => drop(std::thread::spawn(|| serve(client))),
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
