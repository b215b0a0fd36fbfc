// The server of the sender's benchmark: every answer's first token comes TTFT after its request,
// whatever the load, and the rest INTERVAL apart. One thread, epoll, one timerfd.
//
// usage: constant TTFT_US INTERVAL_US     (prints its port; ends with its stdin)
//
// POST: a stream when the body has "stream": true (as many tokens as "max_tokens" says), else a
// whole answer. GET /v1/models and /health are answered; GET /ticks gives the requests so far.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define ROOM 65536
#define DELTA "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1730000000," \
              "\"model\":\"bench\",\"choices\":[{\"index\":0,\"delta\":%s,\"logprobs\":null," \
              "\"finish_reason\":%s}]}"

typedef struct {
  int fd, streams, left, place;  // place: in the heap, -1 when it waits for nothing
  int64_t due, interval;
  size_t held;
  char in[ROOM];
} Conn;

static Conn **heap;
static int waiting, room;
static int64_t ttft, interval;
static uint64_t requests;
static int timer;

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void put(int at, Conn *c) { heap[at] = c; c->place = at; }

static void sift(int at) {
  Conn *c = heap[at];
  while (at > 0 && heap[(at - 1) / 2]->due > c->due) { put(at, heap[(at - 1) / 2]); at = (at - 1) / 2; }
  for (;;) {
    int child = 2 * at + 1;
    if (child >= waiting) break;
    if (child + 1 < waiting && heap[child + 1]->due < heap[child]->due) child++;
    if (heap[child]->due >= c->due) break;
    put(at, heap[child]);
    at = child;
  }
  put(at, c);
}

static void wait_for(Conn *c, int64_t due) {
  c->due = due;
  if (c->place < 0) {
    if (waiting == room) heap = realloc(heap, (room = room ? 2 * room : 1024) * sizeof *heap);
    put(waiting++, c);
  }
  sift(c->place);
}

static void forget(Conn *c) {
  int at = c->place;
  if (at < 0) return;
  c->place = -1;
  if (at == --waiting) return;
  put(at, heap[waiting]);
  sift(at);
}

static void arm(void) {
  static int64_t armed = -1;
  int64_t due = waiting ? heap[0]->due : 0;
  if (due == armed) return;
  armed = due;
  struct itimerspec spec = {{0, 0}, {due / 1000000000LL, due % 1000000000LL}};
  timerfd_settime(timer, TFD_TIMER_ABSTIME, &spec, NULL);
}

static void send_all(Conn *c, const char *data, size_t size) {
  // Small answers to clients that read: what does not fit at once is waited for.
  while (size) {
    ssize_t sent = send(c->fd, data, size, MSG_NOSIGNAL);
    if (sent < 0) { if (errno == EAGAIN) { usleep(100); continue; } return; }
    data += sent;
    size -= sent;
  }
}

static size_t event(char *to, const char *delta, const char *finish) {
  char data[512];
  int size = sprintf(data, "data: " DELTA "\n\n", delta, finish);
  return sprintf(to, "%x\r\n%s\r\n", size, data);
}

static void whole(Conn *c, const char *body) {
  char out[2048];
  size_t size = sprintf(out, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                             "content-length: %zu\r\n\r\n%s", strlen(body), body);
  send_all(c, out, size);
}

static void step(Conn *c) {  // its time has come
  char out[8192];
  size_t size = 0;
  if (!c->streams) {
    whole(c, "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1730000000,"
             "\"model\":\"bench\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
             "\"content\":\"Hello\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":"
             "{\"prompt_tokens\":9,\"completion_tokens\":1,\"total_tokens\":10}}");
    return;
  }
  size += event(out + size, "{\"content\":\" token\"}", "null");
  if (--c->left > 0) {
    wait_for(c, c->due + c->interval);
  } else {
    size += event(out + size, "{}", "\"stop\"");
    size += sprintf(out + size, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
  }
  send_all(c, out, size);
}

static size_t request(Conn *c) {  // bytes of the first whole request in c->in, 0: not whole
  char *end = memmem(c->in, c->held, "\r\n\r\n", 4);
  if (!end) return 0;
  size_t head = end + 4 - c->in, length = 0;
  *end = 0;
  char *field = strcasestr(c->in, "content-length:");
  if (field) length = strtoul(field + 15, NULL, 10);
  *end = '\r';
  if (c->held < head + length) return 0;
  if (!strncmp(c->in, "POST", 4)) {
    requests++;
    char *body = c->in + head, *bound = memmem(body, length, "max_tokens\":", 12);
    if (!bound && (bound = memmem(body, length, "max_completion_tokens\":", 23))) bound += 11;
    c->streams = memmem(body, length, "\"stream\":true", 13) || memmem(body, length, "\"stream\": true", 14);
    c->left = bound ? atoi(bound + 12) : 16;
    c->interval = interval;
    c->due = now() + ttft;
    if (c->streams) {
      char out[1024];
      size_t size = sprintf(out, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                                 "transfer-encoding: chunked\r\n\r\n");
      size += event(out + size, "{\"role\":\"assistant\",\"content\":\"\"}", "null");
      send_all(c, out, size);
    }
    if (ttft) wait_for(c, c->due); else step(c);
  } else if (!strncmp(c->in, "GET /v1/models", 14)) {
    whole(c, "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\",\"owned_by\":\"vllm\"}]}");
  } else if (!strncmp(c->in, "GET /ticks", 10)) {
    char count[64];
    sprintf(count, "{\"requests\":%lu}", requests);
    whole(c, count);
  } else {
    whole(c, "{\"status\":\"ok\"}");
  }
  return head + length;
}

static int readable(Conn *c) {  // 0: it is gone
  ssize_t got = recv(c->fd, c->in + c->held, ROOM - 1 - c->held, 0);
  if (got < 0 && errno == EAGAIN) return 1;
  if (got <= 0) return 0;
  c->held += got;
  for (size_t used; (used = request(c));) memmove(c->in, c->in + used, c->held -= used);
  return c->held < ROOM - 1;
}

int main(int argc, char **argv) {
  if (argc != 3) { fputs("usage: constant TTFT_US INTERVAL_US\n", stderr); return 2; }
  ttft = atoll(argv[1]) * 1000;
  interval = atoll(argv[2]) * 1000;
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  if (bind(listener, (void *)&address, size) || listen(listener, 4096)) { perror("listen"); return 2; }
  getsockname(listener, (void *)&address, &size);
  timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  int poll = epoll_create1(0);
  static int listens, ticks, input;  // their addresses tell them from connections
  epoll_ctl(poll, EPOLL_CTL_ADD, listener, &(struct epoll_event){EPOLLIN, {.ptr = &listens}});
  epoll_ctl(poll, EPOLL_CTL_ADD, timer, &(struct epoll_event){EPOLLIN, {.ptr = &ticks}});
  epoll_ctl(poll, EPOLL_CTL_ADD, 0, &(struct epoll_event){EPOLLIN, {.ptr = &input}});
  printf("%d\n", ntohs(address.sin_port));
  fflush(stdout);
  for (;;) {
    struct epoll_event events[256];
    int count = epoll_wait(poll, events, 256, -1);
    for (int n = 0; n < count; n++) {
      void *what = events[n].data.ptr;
      char drop[8];
      if (what == &input) {
        if (read(0, drop, sizeof drop) <= 0) return 0;
      } else if (what == &ticks) {
        (void)!read(timer, drop, 8);
      } else if (what == &listens) {
        for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
          setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
          Conn *c = malloc(sizeof *c);
          c->fd = fd;
          c->held = 0;
          c->place = -1;
          epoll_ctl(poll, EPOLL_CTL_ADD, fd, &(struct epoll_event){EPOLLIN, {.ptr = c}});
        }
      } else if (!readable(what)) {
        Conn *c = what;
        forget(c);
        close(c->fd);
        free(c);
      }
    }
    for (int64_t t = now(); waiting && heap[0]->due <= t;) {
      Conn *c = heap[0];
      forget(c);
      step(c);
    }
    arm();
  }
}
