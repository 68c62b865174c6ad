package v1alpha1

// Example is a configuration and what is said about it.
type Example struct {
	Parameters string // JSON
	// Says is part of the error, empty if there is none.
	Says string
	// Late means that only the driver notices: the rules that the API server
	// has cannot express it.
	Late bool
}

// Examples are configurations, right and wrong ones, by name: what tests of
// everybody who has to agree on them begin with.
func Examples() map[string]Example {
	head := `"apiVersion":"gpu.lab.example/v1alpha1","kind":"GPUConfig"`
	return map[string]Example{
		"nothing set":      {Parameters: `{` + head + `}`},
		"exclusive":        {Parameters: `{` + head + `,"sharing":{"strategy":"Exclusive"}}`},
		"default interval": {Parameters: `{` + head + `,"sharing":{"strategy":"TimeSlicing"}}`},
		"long interval":    {Parameters: `{` + head + `,"sharing":{"strategy":"TimeSlicing","timeSlicing":{"interval":"Long"}}}`},

		"empty":               {Parameters: `{}`, Says: `kind ""`},
		"another version":     {Parameters: `{"apiVersion":"gpu.lab.example/v1","kind":"GPUConfig"}`, Says: `apiVersion "gpu.lab.example/v1"`},
		"another kind":        {Parameters: `{"apiVersion":"gpu.lab.example/v1alpha1","kind":"MigConfig"}`, Says: `kind "MigConfig"`},
		"unknown field":       {Parameters: `{` + head + `,"shared":true}`, Says: `unknown field "shared"`},
		"unknown inner field": {Parameters: `{` + head + `,"sharing":{"strategy":"Exclusive","count":2}}`, Says: `unknown field "sharing.count"`},
		"wrong case":          {Parameters: `{` + head + `,"Sharing":{"strategy":"Exclusive"}}`, Says: `unknown field "Sharing"`},
		"key twice":           {Parameters: `{` + head + `,"kind":"GPUConfig"}`, Says: `duplicate field "kind"`, Late: true},
		"no strategy":         {Parameters: `{` + head + `,"sharing":{}}`, Says: `sharing.strategy is ""`},
		"unknown strategy":    {Parameters: `{` + head + `,"sharing":{"strategy":"MPS"}}`, Says: `sharing.strategy is "MPS"`},
		"interval of nothing": {Parameters: `{` + head + `,"sharing":{"strategy":"Exclusive","timeSlicing":{"interval":"Long"}}}`, Says: "is for strategy TimeSlicing"},
		"no interval":         {Parameters: `{` + head + `,"sharing":{"strategy":"TimeSlicing","timeSlicing":{}}}`, Says: `interval is ""`},
		"unknown interval":    {Parameters: `{` + head + `,"sharing":{"strategy":"TimeSlicing","timeSlicing":{"interval":"1ms"}}}`, Says: `interval is "1ms"`},
		"wrong type":          {Parameters: `{` + head + `,"sharing":"Exclusive"}`, Says: "cannot unmarshal"},
	}
}
