//! What the suite asks of the loop itself: timers, jobs of other threads, turns and their ends.

use super::*;

pub(crate) async fn sleeping_in_order(_: EngineKind) {
    let order = Rc::new(RefCell::new(Vec::new()));
    for ms in [30_u64, 10, 20, 0] {
        let order = order.clone();
        spawn(async move {
            sleep(Duration::from_millis(ms)).await;
            order.borrow_mut().push(ms);
        });
    }
    // A cancelled sleep wakes nobody.
    let _ = either(sleep(Duration::from_millis(5)), async {}).await;
    while order.borrow().len() < 4 {
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(*order.borrow(), [0, 10, 20, 30]);
    assert!(matches!(
        either(sleep(Duration::MAX), sleep(Duration::ZERO)).await,
        Either::Second(())
    ));
}

pub(crate) async fn blocking_jobs(_: EngineKind) {
    let mut jobs: Vec<Pin<Box<dyn Future<Output = u32>>>> = Vec::new();
    for number in 0..100 {
        jobs.push(Box::pin(engine::blocking(move || number * 2)));
    }
    let mut sum = 0;
    for job in jobs {
        sum += job.await;
    }
    assert_eq!(sum, 9900);
}

pub(crate) async fn posting_from_other_threads(kind: EngineKind) {
    if kind == EngineKind::Sim {
        return;
    }
    let remote = engine::remote();
    thread_local!(static COUNT: Cell<u32> = const { Cell::new(0) });
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let remote = remote.clone();
            std::thread::spawn(move || {
                for _ in 0..250 {
                    remote.post(Box::new(|| COUNT.set(COUNT.get() + 1)));
                }
            })
        })
        .collect();
    while COUNT.get() < 1000 {
        sleep(Duration::from_millis(1)).await;
    }
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    // Nothing else happens on this runtime: the post alone must end its wait.
    let posted = Instant::now();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        remote.post(Box::new(|| COUNT.set(COUNT.get() + 1)));
    });
    let mut turns = 0;
    poll_fn(|context| {
        turns += 1;
        if COUNT.get() > 1000 {
            return Poll::Ready(());
        }
        let waker = context.waker().clone();
        if turns == 1 {
            spawn(async move {
                while COUNT.get() <= 1000 {
                    sleep(Duration::from_millis(1)).await;
                }
                waker.wake();
            });
        }
        Poll::Pending
    })
    .await;
    assert!(posted.elapsed() < Duration::from_secs(30));
}

pub(crate) async fn waking_from_other_threads(kind: EngineKind) {
    if kind == EngineKind::Sim {
        return;
    }
    let woken = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut started = false;
    poll_fn(|context| {
        if woken.load(std::sync::atomic::Ordering::SeqCst) {
            return Poll::Ready(());
        }
        if !std::mem::replace(&mut started, true) {
            let (woken, waker) = (woken.clone(), context.waker().clone());
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                woken.store(true, std::sync::atomic::Ordering::SeqCst);
                waker.wake();
            });
        }
        Poll::Pending
    })
    .await;
}

/// Bytes that are there already do not make their reader, or whoever writes them, hold the others
/// up.
pub(crate) async fn busy_tasks_give_way(kind: EngineKind) {
    /// Receives of one turn: the share of a task, and then some.
    const RECEIVES_MAX: usize = 64;
    let (client, server) = pair(kind).await;
    let (quiet, quiet_server) = pair(kind).await;
    quiet.push(Bytes::from_static(b"x"));
    quiet.start_send();
    let content = pattern(4_000_000);
    client.push(Bytes::from(content.clone()));
    client.start_send();
    client.shutdown_write();
    sleep(Duration::from_millis(50)).await;

    let in_turn = Rc::new(Cell::new(0));
    let most = Rc::new(Cell::new(0));
    let (counter, highest) = (in_turn.clone(), most.clone());
    engine::on_turn_end(move || highest.set(highest.get().max(counter.take())));
    let received = Rc::new(Cell::new(0));
    let (counter, sum) = (in_turn.clone(), received.clone());
    let done = Rc::new(Cell::new(false));
    let flag = done.clone();
    spawn(async move {
        loop {
            let buffer = server.recv(None).await.unwrap();
            if buffer.is_empty() {
                return flag.set(true);
            }
            counter.set(counter.get() + 1);
            sum.set(sum.get() + buffer.len());
        }
    });
    assert_eq!(&quiet_server.recv(soon()).await.unwrap()[..], b"x");
    assert!(!done.get(), "the other was served at the end");
    while !done.get() {
        engine::yield_now().await;
    }
    assert_eq!(received.get(), content.len());
    assert!(most.get() <= RECEIVES_MAX, "{} in one turn", most.get());
}

pub(crate) async fn turn_end_runs(_: EngineKind) {
    let turns = Rc::new(Cell::new(0));
    let counter = turns.clone();
    engine::on_turn_end(move || counter.set(counter.get() + 1));
    for _ in 0..5 {
        engine::yield_now().await;
    }
    assert!(turns.get() >= 5);
}

pub(crate) async fn yielding_lets_others_run(kind: EngineKind) {
    let (client, server) = pair(kind).await;
    client.push(Bytes::from_static(b"x"));
    client.start_send();
    let arrived = Rc::new(Cell::new(false));
    let flag = arrived.clone();
    spawn(async move {
        let buffer: Buffer = server.recv(None).await.unwrap();
        flag.set(!buffer.is_empty());
    });
    // A task that is always ready must not keep the kernel out.
    while !arrived.get() {
        engine::yield_now().await;
    }
}
