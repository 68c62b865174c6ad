package host

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ensureBridge makes a network bridge with this address, up and running. One
// that exists is given the address. It works without the ip command, which a
// small system may lack.
func ensureBridge(name string, address netip.Prefix) error {
	err := withControlSocket(func(fd int) error {
		request, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, unix.SIOCBRADDBR, request); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add: %w", err)
		}
		if hasAddress(name, address) {
			return setUp(fd, name, true)
		}
		// The address first gets the netmask of its old-time class, as wide as
		// 10.0.0.0/8. While the bridge is down, no route follows from that.
		if err := setUp(fd, name, false); err != nil {
			return err
		}
		mask := net.CIDRMask(address.Bits(), 32)
		for _, step := range []struct {
			what  string
			call  uint
			value []byte
		}{
			{"set address", unix.SIOCSIFADDR, address.Addr().AsSlice()},
			{"set netmask", unix.SIOCSIFNETMASK, mask},
		} {
			request, err := unix.NewIfreq(name)
			if err != nil {
				return err
			}
			if err := request.SetInet4Addr(step.value); err != nil {
				return fmt.Errorf("%s: %w", step.what, err)
			}
			if err := unix.IoctlIfreq(fd, step.call, request); err != nil {
				return fmt.Errorf("%s: %w", step.what, err)
			}
		}
		return setUp(fd, name, true)
	})
	if err != nil {
		return fmt.Errorf("make bridge %q: %w", name, err)
	}
	return nil
}

// removeBridges removes every bridge whose name begins with prefix.
func removeBridges(prefix string) error {
	interfaces, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list network interfaces: %w", err)
	}
	var errs error
	for _, i := range interfaces {
		if !strings.HasPrefix(i.Name, prefix) || !isBridge(i.Name) {
			continue
		}
		err := withControlSocket(func(fd int) error {
			if err := setUp(fd, i.Name, false); err != nil {
				return err
			}
			request, err := unix.NewIfreq(i.Name)
			if err != nil {
				return err
			}
			return unix.IoctlIfreq(fd, unix.SIOCBRDELBR, request)
		})
		if err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENXIO) {
			errs = errors.Join(errs, fmt.Errorf("remove bridge %q: %w", i.Name, err))
		}
	}
	return errs
}

// isBridge asks the kernel; /sys may show another network namespace.
func isBridge(name string) bool {
	return withControlSocket(func(fd int) error {
		info, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
		if err == nil && unix.ByteSliceToString(info.Driver[:]) != "bridge" {
			err = errors.New("no bridge")
		}
		return err
	}) == nil
}

func withControlSocket(do func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open control socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	return do(fd)
}

func setUp(fd int, name string, up bool) error {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, request); err != nil {
		return fmt.Errorf("get flags: %w", err)
	}
	flags := request.Uint16() | unix.IFF_UP
	if !up {
		flags = request.Uint16() &^ unix.IFF_UP
	}
	request.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("set flags: %w", err)
	}
	return nil
}

func hasAddress(name string, address netip.Prefix) bool {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return false
	}
	addresses, err := i.Addrs()
	if err != nil {
		return false
	}
	for _, a := range addresses {
		if a.String() == address.String() {
			return true
		}
	}
	return false
}

// freeRange returns a /16 for the private engine's networks that overlaps with
// nothing this host has a route to, whatever the interfaces of the lab have.
func freeRange(ourPrefix string) (netip.Prefix, error) {
	f, err := os.Open("/proc/net/route")
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("list routes: %w", err)
	}
	defer f.Close()
	routes, err := parseRoutes(f)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("list routes: %w", err)
	}
	// Clear of Docker's defaults (172.17 and up, 192.168), of kind's Pods
	// and Services (10.244, 10.96) and of what sites like to use (10.0).
	for third := byte(213); third < 240; third++ {
		candidate := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, third, 0, 0}), 16)
		free := true
		for _, r := range routes {
			elsewhere := r.to.Bits() == 0 || strings.HasPrefix(r.device, ourPrefix)
			free = free && (elsewhere || !r.to.Overlaps(candidate))
		}
		if free {
			return candidate, nil
		}
	}
	return netip.Prefix{}, errors.New("find free address range: every one from 10.213.0.0/16 to 10.239.0.0/16 has a route")
}

// route is a line of the kernel's routing table.
type route struct {
	device string
	to     netip.Prefix
}

// parseRoutes reads the kernel's IPv4 routing table.
func parseRoutes(table io.Reader) ([]route, error) {
	var routes []route
	lines := bufio.NewScanner(table)
	for first := true; lines.Scan(); first = false {
		fields := strings.Fields(lines.Text())
		if first || len(fields) < 8 {
			continue
		}
		address, err := littleEndian(fields[1])
		if err != nil {
			return nil, err
		}
		mask, err := littleEndian(fields[7])
		if err != nil {
			return nil, err
		}
		bits, _ := net.IPMask(mask[:]).Size()
		routes = append(routes, route{device: fields[0], to: netip.PrefixFrom(netip.AddrFrom4(address), bits)})
	}
	return routes, lines.Err()
}

// uplinkMTU returns the size of packets that the way out of this host takes,
// and 0 where Docker's own choice of 1500 is right: containers that send larger
// ones than the host can would lose them.
func uplinkMTU() int {
	f, err := os.Open("/proc/net/route")
	if err != nil {
		return 0
	}
	defer f.Close()
	routes, err := parseRoutes(f)
	if err != nil {
		return 0
	}
	for _, r := range routes {
		if r.to.Bits() != 0 {
			continue
		}
		if i, err := net.InterfaceByName(r.device); err == nil && i.MTU >= 1280 && i.MTU < 1500 {
			return i.MTU
		}
	}
	return 0
}

func littleEndian(word string) ([4]byte, error) {
	var address [4]byte
	raw, err := hex.DecodeString(word)
	if err != nil || len(raw) != 4 {
		return address, fmt.Errorf("parse route %q: no address", word)
	}
	binary.BigEndian.PutUint32(address[:], binary.LittleEndian.Uint32(raw))
	return address, nil
}
