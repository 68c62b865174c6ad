package reach

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/dra-lab/dra-lab/lab/probe"
)

// AgentVerb is the hidden verb of the lab, and of any other program that is
// copied into nodes, under which [AgentMain] runs there.
const AgentVerb = "probe-agent"

// maxLine bounds a request and an answer.
const maxLine = 1 << 20

// maxBusy bounds the handlers that an agent runs at once; more wait.
const maxBusy = 64

// request and answer are a line each. Answers come in any order.
type request struct {
	ID     uint64       `json:"id"`
	Target probe.Target `json:"target"`
}

type answer struct {
	ID      uint64        `json:"id"`
	Handler string        `json:"handler"`
	Result  probe.Result  `json:"result"`
	Output  string        `json:"output,omitempty"`
	Error   string        `json:"error,omitempty"`
	Took    time.Duration `json:"took"`
}

// AgentMain is the agent: the process in the node that runs handlers there, as
// its stdin asks, until that ends. It returns the exit status.
func AgentMain() int {
	run, closeRuntime, err := inRuntime(containerdSocket)
	if err == nil {
		err = serve(os.Stdin, os.Stdout, probe.Handlers{Dial: probe.Direct(), Exec: run})
		err = errors.Join(err, closeRuntime())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", AgentVerb, err)
		return 1
	}
	return 0
}

func serve(stdin io.Reader, stdout io.Writer, handlers probe.Prober) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop() // nobody reads the answers that are still to come; the process ends with those who work on them
	free := make(chan struct{}, maxBusy)
	var write sync.Mutex
	lines := bufio.NewScanner(stdin)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		free <- struct{}{}
		go func() {
			defer func() { <-free }()
			a := handlers.Probe(ctx, r.Target)
			line := answer{ID: r.ID, Handler: a.Handler, Result: a.Result, Output: a.Output, Took: a.Took}
			if a.Err != nil {
				line.Error = a.Err.Error()
			}
			data, err := json.Marshal(line)
			if err != nil {
				return // strings and numbers: it cannot fail
			}
			write.Lock()
			defer write.Unlock()
			_, _ = stdout.Write(append(data, '\n')) // who does not read it gets the end of stdin, too
		}()
	}
	return lines.Err()
}

// Agent runs handlers in a node. It starts its process there with the first one,
// and again when it has ended, because the node was restarted for example. Its
// methods may be called by any goroutine.
type Agent struct {
	command func(context.Context) (*exec.Cmd, error)
	life    context.Context // of the process; Close ends it
	end     context.CancelFunc

	mu      sync.Mutex // held to start a process as well
	process *process   // nil: none
	nextID  uint64
}

// NewAgent returns an agent whose process command makes: it has to run AgentMain
// in the node with its stdin and stdout connected, and is not started yet.
// Nothing is started before the first use. The caller has to Close it.
func NewAgent(command func(context.Context) (*exec.Cmd, error)) *Agent {
	a := &Agent{command: command}
	a.life, a.end = context.WithCancel(context.Background())
	return a
}

// farewell is how long the process may take to see that nobody asks any more.
const farewell = 2 * time.Second

// Close ends the process and waits for it.
func (a *Agent) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.end()
	if a.process == nil {
		return nil
	}
	_ = a.process.stdin.Close() // with which it ends, in the node as well
	late := time.AfterFunc(farewell, a.end)
	defer late.Stop()
	<-a.process.exited
	return nil
}

// process is one that runs in the node.
type process struct {
	stdin  io.WriteCloser
	exited chan struct{}
	err    error // written before exited is closed

	write sync.Mutex // held to write to stdin

	mu      sync.Mutex
	waiting map[uint64]chan<- answer
}

// Probe implements [probe.Prober]. That the agent cannot be reached is an error.
func (a *Agent) Probe(ctx context.Context, t probe.Target) probe.Answer {
	got, err := a.ask(ctx, t)
	if err != nil {
		return probe.Answer{Handler: "agent in the node", Result: probe.Unknown, Err: err, Tries: 1}
	}
	result := probe.Answer{Handler: got.Handler, Result: got.Result, Output: got.Output, Took: got.Took, Tries: 1}
	if got.Error != "" {
		result.Err = errors.New(got.Error)
	}
	return result
}

func (a *Agent) ask(ctx context.Context, t probe.Target) (answer, error) {
	p, id, err := a.running()
	if err != nil {
		return answer{}, err
	}
	data, err := json.Marshal(request{ID: id, Target: t})
	if err != nil {
		return answer{}, fmt.Errorf("ask the agent: %w", err)
	}
	mine := make(chan answer, 1)
	p.mu.Lock()
	p.waiting[id] = mine
	p.mu.Unlock()
	p.write.Lock()
	_, _ = p.stdin.Write(append(data, '\n'))
	p.write.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.waiting, id)
		p.mu.Unlock()
	}()
	// If that failed, the process has ended or is about to, and says why.
	select {
	case got := <-mine:
		return got, nil
	case <-p.exited:
		return answer{}, fmt.Errorf("ask the agent: it ended: %w", p.err)
	case <-ctx.Done():
		return answer{}, context.Cause(ctx)
	}
}

// Start starts the process, if it does not run, so that no probe has to wait for
// it.
func (a *Agent) Start() error {
	_, _, err := a.running()
	return err
}

// running returns the process, started if it has to be, and an ID.
func (a *Agent) running() (*process, uint64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.nextID++
	if a.process != nil {
		select {
		case <-a.process.exited:
		default:
			return a.process, a.nextID, nil
		}
	}
	p, err := a.start()
	if err != nil {
		return nil, 0, fmt.Errorf("start the agent in the node: %w", err)
	}
	a.process = p
	return p, a.nextID, nil
}

func (a *Agent) start() (*process, error) {
	if a.life.Err() != nil {
		return nil, errors.New("it was closed")
	}
	cmd, err := a.command(a.life)
	if err != nil {
		return nil, err
	}
	// What matters is in the node, and ends with its stdin.
	cmd.Cancel = func() error { return cmd.Process.Kill() }
	cmd.WaitDelay = time.Second
	var stderr head
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{stdin: stdin, exited: make(chan struct{}), waiting: map[uint64]chan<- answer{}}
	go func() {
		defer close(p.exited)
		err := p.receive(stdout)
		if err != nil {
			_ = cmd.Process.Kill() // it speaks another language
		}
		p.err = errors.Join(err, cmd.Wait())
		switch said := string(stderr.bytes()); {
		case said != "":
			p.err = fmt.Errorf("%w: %s", p.err, said)
		case p.err == nil:
			p.err = io.EOF
		}
	}()
	return p, nil
}

// receive hands out the answers until there are no more.
func (p *process) receive(stdout io.Reader) error {
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var got answer
		if err := json.Unmarshal(lines.Bytes(), &got); err != nil {
			return fmt.Errorf("read answer %.200q: %w", lines.Bytes(), err)
		}
		p.mu.Lock()
		if to := p.waiting[got.ID]; to != nil {
			to <- got // has room: an ID is answered once
			delete(p.waiting, got.ID)
		}
		p.mu.Unlock()
	}
	return lines.Err()
}
