package gpu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
)

// The format of /etc/ld.so.cache that glibc has written since 2.2, and alone
// since 2.32: a header, entries of one size, and the strings that they point to.
// Numbers are in the machine's order, which is little-endian wherever NVIDIA has
// a driver. Older files begin with a table in an older format, which is skipped.
const (
	cacheMagic    = "glibc-ld.so.cache1.1"
	oldCacheMagic = "ld.so-1.7.0"

	cacheHeader   = 48 // bytes; the magic, two counts, flags, an offset, unused
	cacheEntry    = 24 // flags, key, value, OS version, hardware capabilities
	oldHeader     = 16
	oldEntry      = 12
	cacheAlign    = 8
	maxCache      = 16 << 20
	maxCacheNames = 1024 // bytes of one string
)

// errNoCache means that there is something else.
var errNoCache = errors.New("not a loader cache")

// cached is what the loader knows of a library.
type cached struct {
	soname, path string
}

// abi is the flags of entries for programs of an architecture, as in glibc's
// ldconfig: an ELF library for libc 6, and the 64-bit ABI.
func abi(architecture string) uint32 {
	if architecture == "arm64" {
		return 0x0a03
	}
	return 0x0303
}

func wantedABI() uint32 { return abi(runtime.GOARCH) }

// parseCache lists the entries for programs of this machine, in the cache's
// order, which is the loader's, too.
func parseCache(data []byte) ([]cached, error) {
	if bytes.HasPrefix(data, []byte(oldCacheMagic)) {
		if len(data) < oldHeader {
			return nil, errNoCache
		}
		entries := uint64(binary.LittleEndian.Uint32(data[12:]))
		skip := (oldHeader + entries*oldEntry + cacheAlign - 1) &^ (cacheAlign - 1)
		if skip > uint64(len(data)) {
			return nil, errNoCache
		}
		data = data[skip:]
	}
	if len(data) < cacheHeader || !bytes.HasPrefix(data, []byte(cacheMagic)) {
		return nil, errNoCache
	}
	count := uint64(binary.LittleEndian.Uint32(data[20:]))
	if count*cacheEntry > uint64(len(data)-cacheHeader) {
		return nil, fmt.Errorf("%w: %d entries do not fit", errNoCache, count)
	}
	wanted := wantedABI()
	var entries []cached
	for i := range count {
		entry := data[cacheHeader+i*cacheEntry:]
		if binary.LittleEndian.Uint32(entry) != wanted {
			continue
		}
		soname, ok := cacheString(data, binary.LittleEndian.Uint32(entry[4:]))
		path, ok2 := cacheString(data, binary.LittleEndian.Uint32(entry[8:]))
		if !ok || !ok2 {
			return nil, fmt.Errorf("%w: entry %d points outside", errNoCache, i)
		}
		entries = append(entries, cached{soname: soname, path: path})
	}
	return entries, nil
}

func cacheString(data []byte, offset uint32) (string, bool) {
	if uint64(offset) >= uint64(len(data)) {
		return "", false
	}
	rest := data[offset:]
	end := bytes.IndexByte(rest[:min(len(rest), maxCacheNames)], 0)
	if end < 0 {
		return "", false
	}
	return string(rest[:end]), true
}
