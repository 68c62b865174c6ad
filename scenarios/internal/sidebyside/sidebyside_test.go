package sidebyside

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	table := Table{
		Head: []string{"kubelet", "v1.36.3", "v1.37.2"},
		Rows: [][]string{{"connections", "1", "1"}, {"  a|b", "none", ""}},
	}
	for _, c := range []struct {
		name, want string
		write      func(*strings.Builder) error
	}{
		{"text", "kubelet       v1.36.3   v1.37.2\nconnections   1         1\n  a|b         none\n", func(b *strings.Builder) error { return table.WriteText(b) }},
		{"Markdown", "| kubelet | v1.36.3 | v1.37.2 |\n| --- | --- | --- |\n| connections | 1 | 1 |\n| · a\\|b | none |  |\n", func(b *strings.Builder) error { return table.WriteMarkdown(b) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got strings.Builder
			if err := c.write(&got); err != nil {
				t.Fatal(err)
			}
			if got.String() != c.want {
				t.Errorf("got\n%s\nwant\n%s", &got, c.want)
			}
		})
	}
}
