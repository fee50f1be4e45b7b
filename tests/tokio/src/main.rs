//! The example server in tasks of tokio: answers each message with its bytes in reverse, and ends when a client
//! sends an empty one. A second argument chooses how tasks wait:
//!
//! ```text
//! futures   by the crate's own futures, which its thread wakes (without an argument, too)
//! events    by event descriptors in tokio's AsyncFd, which is edge triggered; no thread of the crate
//! ```

use adma::{Block, Connection, Listener};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;
use tokio::sync::Notify;

type Events<'a> = AsyncFd<BorrowedFd<'a>>;

fn polled(fd: BorrowedFd<'_>) -> io::Result<Events<'_>> {
    // SAFETY: borrowed from a connection or listener, which keeps it open longer than this lives.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}

/// Looks until there is something; arms after every look, and sleeps only after a 0.
async fn until<T>(
    events: &Events<'_>,
    arm: impl Fn() -> io::Result<bool>,
    mut look: impl FnMut() -> io::Result<Option<T>>,
) -> io::Result<T> {
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if !arm()? {
            events.readable().await?.clear_ready();
        }
    }
}

async fn serve_by_events(client: Connection, over: Arc<Notify>) -> io::Result<()> {
    let events = polled(client.event_fd()?)?;
    let arm = || client.arm();
    loop {
        let len = until(&events, arm, || client.try_next()).await?;
        let mut message = client.read(Block::from(vec![0; len]));
        let (result, mut block) = until(&events, arm, || Ok(message.try_end())).await?;
        if result? == 0 {
            over.notify_one();
            return Ok(());
        }
        block.reverse();
        let mut message = client.write(block);
        until(&events, arm, || Ok(message.try_end())).await?.0?;
    }
}

async fn serve_by_futures(client: Connection, over: Arc<Notify>) -> io::Result<()> {
    loop {
        let len = client.next().await?;
        let (result, mut block) = client.read(Block::from(vec![0; len])).await;
        if result? == 0 {
            over.notify_one();
            return Ok(());
        }
        block.reverse();
        client.write(block).await.0?;
    }
}

async fn accept_by_events(listener: Listener, over: Arc<Notify>) -> io::Result<()> {
    let events = polled(listener.event_fd()?)?;
    loop {
        let client = until(&events, || listener.arm(), || listener.try_accept()).await?;
        tokio::spawn(serve_by_events(client, over.clone())); // an error: it has closed
    }
}

async fn accept_by_futures(listener: Listener, over: Arc<Notify>) -> io::Result<()> {
    loop {
        tokio::spawn(serve_by_futures(listener.next_client().await?, over.clone()));
    }
}

fn main() -> io::Result<()> {
    let mut words = std::env::args().skip(1);
    let path = words.next().unwrap_or("/tmp/adma-example".into());
    let by_events = words.next().as_deref() == Some("events");
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
        let (listener, over) = (Listener::bind(path)?, Arc::new(Notify::new()));
        let is_over = over.clone();
        tokio::spawn(async move {
            let failed = match by_events {
                true => accept_by_events(listener, over).await,
                false => accept_by_futures(listener, over).await,
            };
            eprintln!("no more clients: {failed:?}");
            std::process::exit(1);
        });
        is_over.notified().await;
        Ok(())
    })
}
