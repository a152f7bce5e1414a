mkdir -p boxes/d boxes/b
mv inbox/1.json boxes/d/
mv inbox/2.json boxes/b/
