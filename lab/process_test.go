package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// asNobody is the program nobody: it runs another one as an ordinary user, which
// it already is unless tests run as root.
//
//	nobody PROGRAM [ARGUMENT...]
func asNobody() {
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if os.Geteuid() == 0 {
		const nobody = 65534
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	os.Exit(exitStatus(cmd.Run()))
}

// interrupt is the program interrupt: it runs another one in a process group, as
// a shell does, and sends the group a signal when a line on stderr matches, as
// Ctrl-C does. Signals with lines come one after the other. It ends as the other
// program does, and with status 99 if that ended without the lines.
//
//	interrupt SIGNAL:REGEXP... -- PROGRAM [ARGUMENT...]
func interrupt() {
	split := slices.Index(os.Args, "--")
	var plan []planned
	for _, arg := range os.Args[1:split] {
		name, text, _ := strings.Cut(arg, ":")
		number := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL}[name]
		plan = append(plan, planned{number, regexp.MustCompile(text)})
	}
	cmd := exec.Command(os.Args[split+1], os.Args[split+2:]...)
	cmd.Stdout = os.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(98)
	}
	// What is sent to this program is for that one.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		for range signals {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		}
	}()
	var reading sync.WaitGroup
	reading.Go(func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(os.Stderr, lines.Text())
			if len(plan) > 0 && plan[0].line.Match(lines.Bytes()) {
				_ = syscall.Kill(-cmd.Process.Pid, plan[0].signal)
				plan = plan[1:]
			}
		}
	})
	reading.Wait()
	status := exitStatus(cmd.Wait())
	if len(plan) > 0 {
		fmt.Fprintf(os.Stderr, "interrupt: no line matched %q\n", plan[0].line)
		status = 99
	}
	os.Exit(status)
}

type planned struct {
	signal syscall.Signal
	line   *regexp.Regexp
}

// exitStatus returns the status of a program that ran, as a shell has it.
func exitStatus(err error) int {
	exit := (*exec.ExitError)(nil)
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		fmt.Fprintln(os.Stderr, err)
		return 98
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}
