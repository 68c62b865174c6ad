package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
)

// firewall lets the private engine's networks through the host's packet filter
// and gives them a way out.
//
// dockerd could do this itself, but on every start it takes down and rebuilds
// chains named DOCKER and so on, for which an engine beside it would lose its
// published ports. So the private engine runs with that switched off, and these
// are the rules it needs, in chains with a name of their own.
type firewall struct {
	prefix   string       // of the interfaces' names, such as "dralab"
	networks netip.Prefix // every network of the engine is inside
}

// chain is the name of the chains of ours, in the tables filter and nat.
func (f firewall) chain() string { return strings.ToUpper(f.prefix) }

// rule is one call of iptables.
type rule []string

// rules returns the calls that fill our chains, in order.
func (f firewall) rules() []rule {
	ours := f.prefix + "+"
	return []rule{
		// Other engines keep their isolation: what goes to their bridges
		// is for their own rules to judge.
		{"-t", "filter", "-A", f.chain(), "-i", ours, "-o", "docker+", "-j", "RETURN"},
		{"-t", "filter", "-A", f.chain(), "-i", ours, "-o", "br-+", "-j", "RETURN"},
		{"-t", "filter", "-A", f.chain(), "-i", ours, "-j", "ACCEPT"},
		{"-t", "filter", "-A", f.chain(), "-o", ours, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"},
		{"-t", "nat", "-A", f.chain(), "-s", f.networks.String(), "!", "-o", ours, "-j", "MASQUERADE"},
	}
}

// hooks returns where the packets enter our chains.
func (f firewall) hooks() []struct{ table, chain string } {
	return []struct{ table, chain string }{{"filter", "FORWARD"}, {"nat", "POSTROUTING"}}
}

// open puts the rules in place, anew if there are some already.
func (f firewall) open(ctx context.Context) error {
	for _, program := range firewallPrograms() {
		for _, hook := range f.hooks() {
			// It may be there from before; filling it anew is what counts.
			_ = iptables(ctx, program, "-t", hook.table, "-N", f.chain())
			if err := iptables(ctx, program, "-t", hook.table, "-F", f.chain()); err != nil {
				return err
			}
		}
		for _, r := range f.rules() {
			if err := iptables(ctx, program, r...); err != nil {
				return err
			}
		}
		for _, hook := range f.hooks() {
			if err := iptables(ctx, program, "-t", hook.table, "-C", hook.chain, "-j", f.chain()); err == nil {
				continue
			}
			if err := iptables(ctx, program, "-t", hook.table, "-I", hook.chain, "1", "-j", f.chain()); err != nil {
				return err
			}
		}
	}
	return nil
}

// close removes our rules and chains, and nothing else.
func (f firewall) close(ctx context.Context) error {
	var errs error
	for _, program := range firewallPrograms() {
		for _, hook := range f.hooks() {
			if err := iptables(ctx, program, "-t", hook.table, "-S", f.chain()); err != nil {
				continue // there is no such chain
			}
			// A run that was killed may have hooked in twice, hardly more.
			for range 4 {
				if err := iptables(ctx, program, "-t", hook.table, "-D", hook.chain, "-j", f.chain()); err != nil {
					break
				}
			}
			err := iptables(ctx, program, "-t", hook.table, "-F", f.chain())
			if err == nil {
				err = iptables(ctx, program, "-t", hook.table, "-X", f.chain())
			}
			errs = errors.Join(errs, err)
		}
	}
	return errs
}

// firewallPrograms returns the iptables programs to go through. Kernels have
// two sets of tables and a packet has to pass both; the old one only matters
// where somebody has filled it.
func firewallPrograms() []string {
	programs := []string{"iptables"}
	legacy, err := os.ReadFile("/proc/net/ip_tables_names")
	if err != nil || !bytes.Contains(legacy, []byte("filter")) {
		return programs
	}
	version, err := exec.Command(findProgram("iptables"), "--version").Output()
	if err == nil && bytes.Contains(version, []byte("nf_tables")) && findProgram("iptables-legacy") != "" {
		programs = append(programs, "iptables-legacy")
	}
	return programs
}

func iptables(ctx context.Context, program string, args ...string) error {
	path := findProgram(program)
	if path == "" {
		return fmt.Errorf("set firewall rule: program %q not found", program)
	}
	// Others change the tables too: wait for them, but not for ever.
	cmd := exec.CommandContext(ctx, path, append([]string{"-w", "10"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("set firewall rule %q: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
