//! A future that wakes itself while it is polled is polled again at once.
//!
//! hyper's connection and the body that its handler reads tell each other of every step by waking the task
//! that both run in. tokio takes such a wake as a wish to yield: it queues the task behind all others and
//! wakes a second worker to steal it, which costs a small request more than its handler does.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Polls in a row before others get their turn.
const POLLS_MAX: usize = 8;

/// See the module.
#[derive(Debug)]
pub(crate) struct OwnWake<F> {
    future: F,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    /// The future is being polled; who wakes it then only leaves a note.
    is_polled: AtomicBool,
    was_woken: AtomicBool,
    task: Mutex<Waker>,
}

impl<F: Future + Unpin> OwnWake<F> {
    pub(crate) fn new(future: F) -> Self {
        let state = State {
            is_polled: AtomicBool::new(false),
            was_woken: AtomicBool::new(false),
            task: Mutex::new(Waker::noop().clone()),
        };
        Self { future, state: Arc::new(state) }
    }
}

impl<F: Future + Unpin> Future for OwnWake<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.state.wakes(cx.waker());
        let waker = Waker::from(Arc::clone(&self.state));
        let mut own = Context::from_waker(&waker);
        for _ in 0..POLLS_MAX {
            let state = Arc::clone(&self.state);
            // What woke it before, this poll sees.
            state.was_woken.store(false, Ordering::SeqCst);
            state.is_polled.store(true, Ordering::SeqCst);
            let polled = Pin::new(&mut self.future).poll(&mut own);
            // In this order: who still sees that it is polled has left its note before it is looked for.
            state.is_polled.store(false, Ordering::SeqCst);
            let was_woken = state.was_woken.load(Ordering::SeqCst);
            if polled.is_ready() || !was_woken {
                return polled;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl State {
    fn wakes(&self, waker: &Waker) {
        self.task.lock().unwrap_or_else(PoisonError::into_inner).clone_from(waker);
    }
}

impl Wake for State {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.was_woken.store(true, Ordering::SeqCst);
        if !self.is_polled.load(Ordering::SeqCst) {
            self.task.lock().unwrap_or_else(PoisonError::into_inner).wake_by_ref();
        }
    }
}

#[cfg(test)]
mod test {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_wake_of_its_own_is_one_more_poll_and_no_wake_of_the_task() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut polls = 0;
        let mut future = OwnWake::new(poll_fn(|cx| {
            polls += 1;
            if polls < 4 {
                cx.waker().wake_by_ref();
            }
            if polls < 5 { Poll::Pending } else { Poll::Ready(()) }
        }));
        let mut cx = Context::from_waker(&waker);
        assert!(Pin::new(&mut future).poll(&mut cx).is_pending());
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        assert!(Pin::new(&mut future).poll(&mut cx).is_ready());
        assert_eq!(polls, 5);
    }

    #[test]
    fn one_that_never_stops_to_wake_itself_lets_others_run() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut polls = 0;
        let mut future = OwnWake::new(poll_fn(|cx| {
            polls += 1;
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        }));
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert_eq!(polls, POLLS_MAX);
    }

    #[test]
    fn a_wake_between_two_polls_wakes_the_task() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let kept = Arc::new(Mutex::new(None::<Waker>));
        let keep = Arc::clone(&kept);
        let mut future = OwnWake::new(poll_fn(move |cx| {
            *keep.lock().unwrap() = Some(cx.waker().clone());
            Poll::<()>::Pending
        }));
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
        kept.lock().unwrap().take().unwrap().wake();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
    }
}
